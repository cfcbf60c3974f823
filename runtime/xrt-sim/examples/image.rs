//! Writes the image of the simulated array into the file that is named: what `drafter --device npu
//! --npu-image` takes together with the library of the other example.

fn main() -> std::io::Result<()> {
    let Some(path) = std::env::args_os().nth(1) else {
        return Err(std::io::Error::other("usage: image FILE"));
    };
    std::fs::write(path, xrt_sim::image())
}
