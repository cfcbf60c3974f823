// The version of the simulated XRT: 0.0.0.
#pragma once

namespace xrt::version {
inline unsigned int major() { return 0; }
inline unsigned int minor() { return 0; }
inline unsigned int patch() { return 0; }
}  // namespace xrt::version
