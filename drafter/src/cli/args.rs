//! What can be asked for.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use command_line::args::{Output, Workers};
use runtime::kv::KvType;
use runtime::quant::ActQuant;
use runtime::round::{Coupling, Limits, Sampling};

use super::bench::BenchArgs;
use super::capture::args::CaptureArgs;
use crate::link::store::Name;

/// Runs a Bonsai 2 target with a DFlash 2 drafter; speculation changes no token.
#[derive(Debug, Parser)]
#[command(name = "drafter", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) workers: Workers,
    #[command(flatten)]
    pub(crate) output: Output,
}

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the files are sound, but the answer is no (verify-exact, bench, link,
       cache verify, doctor, selftest)
  2    wrong usage
  3    a model or another input is missing, damaged or not supported
  4    the output cannot be written, or the port is taken
  5    the computation failed: numbers that are none, a changed floating-point environment, a device
       that is not there or does not do what it is asked
  130  interrupted (143 when terminated, 129 when the terminal went away)";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Checks that a drafter fits an installed Bonsai 2, and gives the pair a name
    ///
    /// The target is looked for in $TERNARIZE_MODEL_DIRS, the drafter/models folder of
    /// $XDG_DATA_HOME, the cache of Hugging Face, and the folders of llama.cpp, LM Studio, OpenFlowLM
    /// and FastFlowLM. Links are kept in $XDG_DATA_HOME/drafter/links (~/.local/share by default).
    Link(LinkArgs),
    /// Lists the linked pairs
    List,
    /// Shows a linked pair and checks that its files are what they were
    Show(ShowArgs),
    /// Removes a link; the models stay
    Unlink(UnlinkArgs),
    /// Says which link is the default, or makes one it
    Default(DefaultArgs),
    /// Answers one prompt; text on standard output, figures on standard error
    Run(RunArgs),
    /// Serves an OpenAI-compatible interface, and a page to chat, with speculation on
    Serve(ServeArgs),
    /// Proves on your own models that speculation changes nothing
    ///
    /// Decodes every prompt plainly, then with every draft length, and compares ids, the bits of
    /// all logits, and digests of the whole state after every commit. Ends with exit code 1 at the
    /// first difference.
    VerifyExact(VerifyExactArgs),
    /// Measures how fast this machine runs a pair, beside its own limits
    ///
    /// Decoding, verifying, drafting and taking in prompts at several lengths and depths, whole answers
    /// with and without speculation, and memory. Times are medians; `dot ms` and `read ms` are what the
    /// operations on ternary weights and the bytes to be read would take at the limits that are
    /// measured in the same run, `times` is the time over the larger of both.
    Bench(BenchArgs),
    /// Lists, checks and removes packed weights
    ///
    /// Ternary weights are packed once per model into the order that the kernels read, and mapped at
    /// later starts. A pack whose model changed is made anew, and any can be removed at any time.
    Cache(CacheArgs),
    /// Collects what a calibrated or tuned ternarization needs from a drafter at work
    ///
    /// The target answers prompts, or given text is gone over; rounds start where serving would start them. Saved
    /// while it runs: after an interruption, the same command goes on.
    Capture(CaptureArgs),
    /// Looks at everything that the NPU needs of this machine
    ///
    /// Driver, device, access, locked memory for a pair, XRT and its plugin, firmware, shim, image and
    /// kernels; what is not as it must be comes with its remedy. Ends with exit code 1 if the NPU cannot
    /// be used.
    Doctor(DoctorArgs),
    /// Multiplies known matrices on a device and compares every bit
    ///
    /// All shapes of the kernels with integers and floats, 8 rows together and each alone, and, given a
    /// pair, output with and without speculation. Ends with exit code 1 if anything differs.
    Selftest(SelftestArgs),
    /// Prints a completion script
    Completions {
        /// The shell it is for
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LinkArgs {
    /// Drafter: float safetensors, q4nx (both with their config.json) or GGUF
    pub(crate) drafter: PathBuf,
    /// Target: a path, or a part of the name of an installed one [default: the one that fits]
    #[arg(short, long, value_name = "PATH|NAME")]
    pub(crate) target: Option<PathBuf>,
    /// Drafter configuration, if it is not beside the drafter
    #[arg(long, value_name = "PATH")]
    pub(crate) drafter_config: Option<PathBuf>,
    /// Name of the link [default: that of the drafter's file or folder]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<Name>,
    /// Record the SHA-256 of all bytes of all files, for `drafter show --hash`
    #[arg(long)]
    pub(crate) hash: bool,
    /// Make it the default
    #[arg(long)]
    pub(crate) default: bool,
    /// Replace a link of the same name
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The link [default: the default one]
    pub(crate) name: Option<Name>,
    /// Read all files whole and compare the hashes
    #[arg(long)]
    pub(crate) hash: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UnlinkArgs {
    /// The link
    pub(crate) name: Name,
}

#[derive(Debug, Args)]
pub(crate) struct DefaultArgs {
    /// The link that becomes the default
    pub(crate) name: Option<Name>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) models: ModelArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) prompt: PromptArgs,
    #[command(flatten)]
    pub(crate) generation: GenerationArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Whether to speculate: `auto` does if there is a drafter, `required` fails without one
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) spec: Spec,
    /// Most drafts of a round: `auto` verifies as many as pay on this machine, none while none does;
    /// more than the drafter's block minus one are cut. Changes the time, no token
    #[arg(long, value_name = "auto|K", default_value = "auto")]
    pub(crate) draft_max: DraftMax,
    /// Show where the time goes, by part and stage
    #[arg(long)]
    pub(crate) profile: bool,
    /// With --json: the K largest logits at each position
    #[arg(long, value_name = "K", default_value_t = 0, requires = "json")]
    pub(crate) top_logits: usize,
    /// Show special tokens in the text
    #[arg(long)]
    pub(crate) special: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) models: ModelArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Whether to speculate: `auto` does if there is a drafter, `required` fails without one
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) spec: Spec,
    /// Most drafts of a round: `auto` verifies as many as pay on this machine, none while none does;
    /// more than the drafter's block minus one are cut. Changes the time, no token
    #[arg(long, value_name = "auto|K", default_value = "auto")]
    pub(crate) draft_max: DraftMax,
    /// Address to listen on; beyond this machine only with --api-key
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// Port; 0: any free one. The default is also that of flm and oflm
    #[arg(long, value_name = "PORT", default_value_t = 52625)]
    pub(crate) port: u16,
    /// Most tokens of prompt and answer together [default: the target's context length]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) ctx: Option<usize>,
    /// Name of the model in the interface [default: that of the link, or of the target's file]
    #[arg(long, value_name = "NAME")]
    pub(crate) model_name: Option<String>,
    /// Jinja file that renders chats [default: the target's own template]
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Key that clients must send; better in a file or the variable, where nobody else sees it
    #[arg(long, value_name = "KEY", env = "DRAFTER_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// File with the key, on its first line
    #[arg(long, value_name = "FILE", conflicts_with = "api_key")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Origin whose pages may ask, scheme and host as browsers send them (repeatable)
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
    /// Name under which the server may be asked, beside localhost and addresses (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(crate) allowed_host: Vec<String>,
    /// Requests that may wait; further ones get status 503
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) queue: usize,
    /// Megabytes for snapshots, which save taking in the same beginnings again; 0: none
    #[arg(long, value_name = "MB", default_value_t = 1024)]
    pub(crate) cache_ram: usize,
    /// Temperature of requests that give none [default: the model's own, or 0]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) default_temperature: Option<f32>,
    /// What the drafter knows of the draws; changes its acceptance, no token
    #[arg(long, value_name = "HOW", default_value = "full")]
    pub(crate) draft_noise: DraftNoise,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyExactArgs {
    #[command(flatten)]
    pub(crate) models: ModelArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Prompts, one JSON object per line: {"prompt": TEXT}, {"messages": […]} or {"ids": […]}
    /// [default: a few built-in ones]
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) prompts: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) generation: GenerationArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Draft lengths: one, or FIRST..LAST with both included [default: 0 to the block minus one]
    #[arg(long, value_name = "RANGE", value_parser = range)]
    pub(crate) draft_max: Option<RangeInclusive<usize>>,
}

/// A pair: a link, or paths.
#[derive(Debug, Args)]
pub(crate) struct PairArgs {
    /// A linked pair [default: the default link]
    #[arg(value_name = "LINK", conflicts_with_all = ["target", "drafter", "drafter_config"])]
    pub(crate) link: Option<Name>,
    /// Target: a GGUF, or the folder of an MLX 2-bit pack
    #[arg(short, long, value_name = "PATH")]
    pub(crate) target: Option<PathBuf>,
    /// Drafter: float safetensors, q4nx (both with their config.json) or GGUF
    #[arg(short, long, value_name = "PATH", requires = "target")]
    pub(crate) drafter: Option<PathBuf>,
    /// Drafter configuration, if it is not beside the drafter
    #[arg(long, value_name = "PATH", requires = "drafter")]
    pub(crate) drafter_config: Option<PathBuf>,
}

impl PairArgs {
    /// Whether a pair is named.
    pub(crate) fn is_given(&self) -> bool {
        self.link.is_some() || self.target.is_some()
    }
}

/// The models and their arithmetic.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    pub(crate) pair: PairArgs,
    /// Integers that meet ternary matrices: a8 or a16; n16 or n8, the NPU's, which the CPU computes
    /// slowly; f32, the slow oracle [default: a8, on the NPU n16]
    #[arg(long, value_name = "ACT")]
    pub(crate) act: Option<ActQuant>,
    /// How keys and values are kept
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub(crate) kv: Kv,
    #[command(flatten)]
    pub(crate) packs: PackArgs,
}

impl ModelArgs {
    /// The arithmetic on the CPU.
    pub(crate) fn act(&self) -> ActQuant {
        self.act.unwrap_or(ActQuant::A8)
    }
}

/// What multiplies the ternary matrices.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// What multiplies ternary matrices: `auto` takes the NPU if it can be used, and says why not;
    /// `npu` fails without it; `npu-sim` is the NPU simulated, for tests: slow
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) npu: NpuArgs,
}

/// What a session on the NPU needs.
#[derive(Debug, Args)]
pub(crate) struct NpuArgs {
    /// The shim over XRT [default: libdrafter_xrt.so beside this program, or in
    /// $XDG_DATA_HOME/drafter/npu]
    #[arg(long, value_name = "FILE", env = "DRAFTER_XRT_SHIM")]
    pub(crate) xrt_shim: Option<PathBuf>,
    /// The image of the array [default: drafter-npu2.xclbin, in the same places]
    #[arg(long, value_name = "FILE", env = "DRAFTER_NPU_IMAGE")]
    pub(crate) npu_image: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// The NPU if it can be used, the CPU if not
    Auto,
    /// The CPU
    Cpu,
    /// The NPU
    Npu,
    /// The NPU, simulated
    NpuSim,
}

impl Device {
    /// The name on command lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Npu => "npu",
            Self::NpuSim => "npu-sim",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) pair: PairArgs,
    #[command(flatten)]
    pub(crate) npu: NpuArgs,
    /// Look at the machine whose files are below this folder
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub(crate) root: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct SelftestArgs {
    #[command(flatten)]
    pub(crate) models: ModelArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// Where weights are kept in the order that kernels read.
#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// Pack the weights in memory at every start, and keep nothing on disk
    #[arg(long, conflicts_with = "pack_cache")]
    pub(crate) no_pack_cache: bool,
    /// Folder of packed weights, small models too [default: $XDG_CACHE_HOME/drafter/packs, for models
    /// of 64 MB or more]
    #[arg(long, value_name = "DIR")]
    pub(crate) pack_cache: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) command: CacheCommand,
    /// The folder [default: $XDG_CACHE_HOME/drafter/packs, ~/.cache/drafter/packs without that]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) pack_cache: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    /// Lists the packs, their models, and whether these are what they were
    List,
    /// Reads packs whole and compares the hash of every matrix
    Verify {
        /// Names from the list, or paths of models [default: all]
        packs: Vec<String>,
    },
    /// Removes packs; they are made again when they are needed
    Remove {
        /// Names from the list, or paths of models
        #[arg(required_unless_present_any = ["all", "stale"])]
        packs: Vec<String>,
        /// All of them
        #[arg(long, conflicts_with_all = ["packs", "stale"])]
        all: bool,
        /// Those that are damaged, or whose model changed or is gone
        #[arg(long, conflicts_with = "packs")]
        stale: bool,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PromptSource {
    /// The prompt
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// A file with the prompt, taken whole, its last line end too; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The prompt as token ids
    #[arg(long, value_name = "ID,…", value_delimiter = ',', value_parser = token_id)]
    pub(crate) ids: Option<Vec<u32>>,
}

#[derive(Debug, Args)]
pub(crate) struct PromptArgs {
    #[command(flatten)]
    pub(crate) source: PromptSource,
    /// Put the prompt into the model's chat template as the user's message
    #[arg(long, conflicts_with = "ids")]
    pub(crate) chat: bool,
    /// The system message
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub(crate) system: Option<String>,
    /// Whether the model thinks first [default: as its template says]
    #[arg(long, value_name = "WHETHER", requires = "chat")]
    pub(crate) think: Option<OnOff>,
}

/// What ends an answer, and how tokens are chosen.
#[derive(Debug, Args)]
pub(crate) struct GenerationArgs {
    /// Most tokens of the answer [default: until it ends or the context is full]
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    /// Most tokens of prompt and answer together [default: the target's context length]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) ctx: Option<usize>,
    /// Go on past tokens that end an answer
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

/// How tokens are drawn.
#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// What logits are divided by; 0 takes the likeliest token
    #[arg(
        long,
        visible_alias = "temperature",
        value_name = "T",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(crate) temp: f64,
    /// Draw from the K likeliest tokens; 0: from all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Draw from the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) top_p: f64,
    /// Draw from tokens at least this likely relative to the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) min_p: f64,
    /// Which of all draws; the same seed gives the same text
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// What the drafter knows of the draws; changes its acceptance, no token
    #[arg(long, value_name = "HOW", default_value = "full")]
    pub(crate) draft_noise: DraftNoise,
}

impl GenerationArgs {
    /// When a request ends, for a model whose answers end with one of `stops`.
    pub(crate) fn limits(&self, stops: &BTreeSet<u32>) -> Limits {
        Limits {
            max_tokens: self.max_tokens,
            stop: if self.ignore_eos { BTreeSet::new() } else { stops.clone() },
            context: self.ctx,
            prefill_chunk: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DraftNoise {
    /// Nothing: it proposes its likeliest tokens
    Off,
    /// The noise
    Noise,
    /// The noise, and what is cut off before drawing
    Full,
}

impl From<DraftNoise> for Coupling {
    fn from(noise: DraftNoise) -> Self {
        match noise {
            DraftNoise::Off => Self::Off,
            DraftNoise::Noise => Self::Noise,
            DraftNoise::Full => Self::Full,
        }
    }
}

impl SamplingArgs {
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
        }
    }

    pub(crate) fn coupling(&self) -> Coupling {
        self.draft_noise.into()
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a number of at least 1".into()),
        Ok(n) => Ok(n),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DraftMax {
    /// As many as pay
    Auto,
    /// At most so many, always
    Fixed(usize),
}

impl DraftMax {
    /// The number, if there is one.
    pub(crate) fn limit(self) -> Option<usize> {
        match self {
            Self::Auto => None,
            Self::Fixed(n) => Some(n),
        }
    }
}

impl FromStr for DraftMax {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Fixed).map_err(|_| "expected `auto` or a number".to_owned())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Spec {
    /// If there is a drafter
    Auto,
    /// Never
    Off,
    /// Always: what keeps it from being so is an error
    Required,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kv {
    F16,
    F32,
}

impl Kv {
    /// The name on command lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }
}

impl From<Kv> for KvType {
    fn from(kv: Kv) -> Self {
        match kv {
            Kv::F16 => Self::F16,
            Kv::F32 => Self::F32,
        }
    }
}

/// A token id, perhaps with blanks around it.
fn token_id(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "expected token ids, separated by commas".to_owned())
}

/// `7`, or `0..7` with both ends.
fn range(text: &str) -> Result<RangeInclusive<usize>, String> {
    let number = |text: &str| {
        text.parse().map_err(|_| "expected a number, or FIRST..LAST with both included".to_owned())
    };
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let range = number(first)?..=number(last.trim_start_matches('='))?;
    if range.is_empty() { Err("the range is empty".into()) } else { Ok(range) }
}
