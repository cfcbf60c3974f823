// Times llama.cpp's products with TQ2_0 matrices as `benches/matmul.rs` times ours: the median over copies
// that no cache holds. Quantizing the activations is part of ggml's product and not taken out.
//
//   matmul THREADS BYTES OUT INPUTS ROWS...      prints one line per number of rows: ROWS MILLISECONDS
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace {

constexpr size_t BLOCK = 66; // 256 codes of two bits, then the f16 scale

std::vector<uint8_t> weights(int64_t out, int64_t inputs) {
    std::vector<uint8_t> bytes(out * inputs / 256 * BLOCK);
    uint64_t state = 1;
    for (size_t block = 0; block < bytes.size(); block += BLOCK) {
        for (size_t i = 0; i < 64; i++) {
            state = state * 6364136223846793005ull + 1;
            const uint8_t codes = state >> 56;
            bytes[block + i] = codes ^ (codes & codes >> 1 & 0x55) << 1; // no code 3
        }
        bytes[block + 64] = 0;
        bytes[block + 65] = 0x20;
    }
    return bytes;
}

double milliseconds(ggml_backend_t backend, const std::vector<ggml_cgraph *> & graphs) {
    std::vector<double> times;
    using clock = std::chrono::steady_clock;
    const auto begin = clock::now();
    const auto since = [](clock::time_point t) { return std::chrono::duration<double>(clock::now() - t).count(); };
    while (times.size() < 2 * graphs.size() + 5 || (since(begin) < 0.4 && times.size() < 1000)) {
        const auto start = clock::now();
        if (ggml_backend_graph_compute(backend, graphs[times.size() % graphs.size()]) != GGML_STATUS_SUCCESS) {
            std::exit(1);
        }
        times.push_back(since(start) * 1e3);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

} // namespace

int main(int argc, char ** argv) {
    if (argc < 6) {
        std::fprintf(stderr, "usage: matmul THREADS BYTES OUT INPUTS ROWS...\n");
        return 2;
    }
    const int threads = std::atoi(argv[1]);
    const int64_t total = std::atoll(argv[2]), out = std::atoll(argv[3]), inputs = std::atoll(argv[4]);
    const std::vector<uint8_t> bytes = weights(out, inputs);
    const size_t copies = (total + bytes.size() - 1) / bytes.size();

    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, threads);
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    ggml_backend_cpu_set_threadpool(backend, ggml_threadpool_new(&params));
    const auto context = [&] {
        return ggml_init({ (8 * copies + 16) * ggml_tensor_overhead() + copies * ggml_graph_overhead_custom(8, false),
                           nullptr, true });
    };
    ggml_context * matrices = context();
    std::vector<ggml_tensor *> w;
    for (size_t i = 0; i < copies; i++) {
        w.push_back(ggml_new_tensor_2d(matrices, GGML_TYPE_TQ2_0, inputs, out));
    }
    if (!ggml_backend_alloc_ctx_tensors(matrices, backend)) {
        return 1;
    }
    for (ggml_tensor * matrix : w) {
        ggml_backend_tensor_set(matrix, bytes.data(), 0, bytes.size());
    }
    for (int arg = 5; arg < argc; arg++) {
        const int64_t rows = std::atoll(argv[arg]);
        std::vector<float> values(rows * inputs);
        for (size_t i = 0; i < values.size(); i++) {
            values[i] = i * 7919 % 2001 / 1000.0f - 1.0f;
        }
        ggml_context * products = context();
        ggml_tensor * x = ggml_new_tensor_2d(products, GGML_TYPE_F32, inputs, rows);
        std::vector<ggml_cgraph *> graphs;
        for (ggml_tensor * matrix : w) {
            ggml_cgraph * graph = ggml_new_graph_custom(products, 8, false);
            ggml_build_forward_expand(graph, ggml_mul_mat(products, matrix, x));
            graphs.push_back(graph);
        }
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(products, backend);
        if (!buffer) {
            return 1;
        }
        ggml_backend_tensor_set(x, values.data(), 0, values.size() * sizeof(float));
        std::printf("%lld %.4f\n", static_cast<long long>(rows), milliseconds(backend, graphs));
        std::fflush(stdout);
        ggml_backend_buffer_free(buffer);
        ggml_free(products);
    }
}
