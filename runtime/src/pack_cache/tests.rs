use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use proptest::prelude::*;

use super::file::{PREFIX, footer};
use super::*;
use crate::error::Error;

/// A matrix whose packed bytes are a function of its seed.
#[derive(Debug)]
struct Item {
    name: String,
    bytes: u64,
    part: usize,
    seed: u8,
    /// Of packing a part.
    delay: Duration,
    damaged: bool,
    taken: Mutex<Option<PackedBytes>>,
}

impl Item {
    fn new(name: &str, bytes: u64, part: usize, seed: u8) -> Self {
        let (name, delay) = (name.to_owned(), Duration::ZERO);
        Self { name, bytes, part, seed, delay, damaged: false, taken: Mutex::default() }
    }

    fn byte(&self, at: usize) -> u8 {
        ((at as u32).wrapping_mul(2_654_435_761) >> 13) as u8 ^ self.seed
    }

    /// Whether it has got what it packs.
    fn is_served(&self) -> bool {
        let taken = self.taken.lock().unwrap();
        let expected: Vec<u8> = (0..self.bytes as usize).map(|at| self.byte(at)).collect();
        taken.as_ref().is_some_and(|view| **view == expected[..])
    }
}

impl Packable for Item {
    fn section(&self) -> Section {
        Section::new(&self.name, [1, self.bytes as usize], self.bytes)
    }

    fn part_bytes(&self) -> usize {
        self.part
    }

    fn pack(&self, part: usize, out: &mut [u8]) -> Result<(), Error> {
        std::thread::sleep(self.delay);
        if self.damaged {
            return Err(Error::EmptyPrompt);
        }
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = self.byte(part * self.part + i);
        }
        Ok(())
    }

    fn will_pack(&self) {}

    fn packed(&self) {}

    fn take(&self, bytes: PackedBytes) {
        *self.taken.lock().unwrap() = Some(bytes);
    }
}

/// A model file, a cache, and the same matrices as often as they are wanted.
struct Setup {
    dir: tempfile::TempDir,
    cache: PackCache,
}

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("model"), "weights").unwrap();
        let cache = PackCache::in_dir(dir.path().join("a/packs"));
        Self { dir, cache }
    }

    fn sources(&self) -> Vec<SourceFile> {
        vec![SourceFile::now(&self.dir.path().join("model")).unwrap()]
    }

    fn attach(&self, items: &[Arc<Item>]) -> Attached {
        self.attach_with(items, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    fn attach_with(
        &self,
        items: &[Arc<Item>],
        on: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Attached, Error> {
        self.cache.attach(&pack(items), self.sources(), on)
    }

    fn pack_path(&self) -> PathBuf {
        self.cache.path_of(KIND, &self.sources())
    }

    /// Names of all files of the cache.
    fn listed(&self) -> Vec<String> {
        let Ok(listed) = fs::read_dir(self.cache.dir()) else { return Vec::new() };
        let names = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != LOCK).collect();
        names.sort();
        names
    }
}

const KIND: &str = "test/1";

fn pack(items: &[Arc<Item>]) -> Pack {
    let items = items.iter().map(|item| Arc::clone(item) as Arc<dyn Packable>).collect();
    Pack { kind: KIND, items, read_in_place: true }
}

fn items() -> Vec<Arc<Item>> {
    let item = |name, bytes, part, seed| Arc::new(Item::new(name, bytes, part, seed));
    vec![item("a", 10_000, 300, 1), item("b", 4096, 4096, 2), item("c", 7, 64, 3)]
}

#[track_caller]
fn served(items: &[Arc<Item>]) {
    assert!(items.iter().all(|item| item.is_served()));
}

#[test]
fn a_pack_is_made_once_and_found_later() {
    let setup = Setup::new();
    let (first, second) = (items(), items());
    let mut events = Vec::new();
    let attached = setup.attach_with(&first, &mut |event| {
        match event {
            Event::Begin { bytes, path, replaced } => {
                assert_eq!((path, replaced), (&*setup.pack_path(), None));
                events.push(bytes);
            }
            Event::Progress { done, total } => {
                assert!(done <= total && total == events[0]);
                events.push(done);
            }
            Event::Waiting => unreachable!("nobody else is here"),
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(attached, Ok(Attached::Made)), "{attached:?}");
    assert!(events.len() > 3 && events[1..].is_sorted());
    assert_eq!(fs::metadata(setup.pack_path()).unwrap().len(), events[0]);
    let attached = setup.attach_with(&second, &mut |event| unreachable!("{event:?}")).unwrap();
    assert!(matches!(attached, Attached::Found), "{attached:?}");
    served(&first);
    served(&second);
    let entries = setup.cache.entries().unwrap();
    assert_eq!(entries.len(), 1);
    assert!(entries[0].is_current());
    let found = entries[0].pack.as_ref().unwrap();
    assert_eq!(found.header().kind, KIND);
    assert_eq!(found.header().packed_bytes(), pack(&first).bytes());
    let all_sound = found.damaged(&mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(all_sound, Some(Vec::new()));
    assert_eq!(found.damaged(&mut |_, _| ControlFlow::Break(())).unwrap(), None);
    setup.cache.remove(&entries[0]).unwrap();
    assert_eq!(setup.listed(), [""; 0]);
    // Who has it mapped goes on.
    served(&second);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the sizes of matrices, parts and pieces are.
    #[test]
    fn every_matrix_gets_its_bytes(
        sizes in prop::collection::vec((0u64..20_000, 1usize..3000), 0..6),
        piece in prop::sample::select(vec![1usize, 512, 4096, 1 << 20]),
    ) {
        let setup = Setup::new();
        let items: Vec<_> = sizes.iter().enumerate().map(|(n, (bytes, part))| {
            Arc::new(Item::new(&n.to_string(), *bytes, *part, n as u8))
        }).collect();
        let (path, pack) = (setup.dir.path().join("x"), pack(&items));
        let sections = pack.items.iter().map(|item| item.section());
        let header = Header::new(KIND, setup.sources(), sections);
        let go_on = &mut |_, _| ControlFlow::Continue(());
        let file = File::create(&path).unwrap();
        writer::write_pieces(&file, header.clone(), &pack.items, piece, go_on).unwrap();
        prop_assert_eq!(fs::metadata(&path).unwrap().len(), file_bytes(&header).unwrap());
        let views = map(&path, &header, true).unwrap();
        prop_assert_eq!(views.len(), items.len());
        pack.hand_out(views);
        served(&items);
        let all_sound = PackFile::open(&path).unwrap().damaged(go_on).unwrap();
        prop_assert_eq!(all_sound, Some(Vec::new()));
    }

    /// A changed byte is seen at once in header and footer, and by the check of all bytes in the
    /// sections; where it is seen at once, the pack is made anew.
    #[test]
    fn damage_is_found(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let setup = Setup::new();
        setup.attach(&items());
        let path = setup.pack_path();
        let mut bytes = fs::read(&path).unwrap();
        let sections: BTreeMap<String, std::ops::Range<u64>> = {
            let pack = PackFile::open(&path).unwrap();
            let start = bytes.len() as u64 - pack.header().data_bytes().unwrap() - 48;
            let place = |s: &Section| {
                (s.name.clone(), start + s.offset..start + s.offset + s.bytes)
            };
            pack.header().sections.iter().map(place).collect()
        };
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // In its place a new file, as the one that was mapped must not change.
        fs::remove_file(&path).unwrap();
        fs::write(&path, &bytes).unwrap();
        let hit = sections.iter().find(|(_, range)| range.contains(&(at as u64)));
        let json = PREFIX as u64 + u64::from(u32::from_le_bytes(bytes[12..16].try_into().unwrap()));
        let of_frame = (at as u64) < json || at >= bytes.len() - 48;
        match PackFile::open(&path) {
            Ok(pack) => {
                prop_assert!(!of_frame);
                let damaged = pack.damaged(&mut |_, _| ControlFlow::Continue(())).unwrap().unwrap();
                prop_assert_eq!(damaged.first(), hit.map(|(name, _)| name));
            }
            Err(_) => {
                prop_assert!(hit.is_none());
                let (again, mut why) = (items(), None);
                let attached = setup.attach_with(&again, &mut |event| {
                    if let Event::Begin { replaced, .. } = event {
                        why = replaced.map(str::to_owned);
                    }
                    ControlFlow::Continue(())
                });
                prop_assert!(matches!(attached, Ok(Attached::Made)));
                prop_assert!(why.is_some());
                served(&again);
            }
        }
    }
}

#[test]
fn a_file_cut_anywhere_is_no_pack() {
    let setup = Setup::new();
    setup.attach(&items());
    let bytes = fs::read(setup.pack_path()).unwrap();
    let path = setup.dir.path().join("cut");
    for len in (0..bytes.len()).step_by(97).chain([bytes.len() - 1]) {
        fs::write(&path, &bytes[..len]).unwrap();
        assert!(PackFile::open(&path).is_err(), "{len}");
    }
    fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
    assert!(PackFile::open(&path).is_err());
    let fault = PackFile::open(&setup.dir.path().join("none")).unwrap_err();
    assert!(matches!(fault, Fault::Unreadable(_)));
}

/// A frame that agrees with itself but describes sections that do not lie in the file, or overlap.
#[test]
fn hostile_headers_are_refused() {
    let setup = Setup::new();
    let path = setup.dir.path().join("hostile");
    let write = |sections: &[(u64, u64)], data: u64| {
        let section =
            |&(offset, bytes): &(u64, u64)| Section { offset, ..Section::new("a", [1, 1], bytes) };
        let sections = sections.iter().map(section).collect();
        let header = Header { kind: KIND.into(), sources: Vec::new(), sections };
        let head = header.encode().unwrap();
        let len = file::data_start(head.len()) + data + 48;
        let mut bytes = head.clone();
        bytes.resize(len as usize - 48, 0);
        bytes.extend(footer(&head, len));
        fs::write(&path, bytes).unwrap();
        PackFile::open(&path)
    };
    assert!(write(&[(0, 4096), (4096, 10)], 8192).is_ok());
    for sections in [
        &[(0, u64::MAX)][..],
        &[(u64::MAX - 4095, 4096)],
        &[(4096, 4096)],
        &[(0, 8192), (4096, 4096)],
        &[(4096, 4096), (0, 4096)],
        &[(0, 9000)],
    ] {
        let fault = write(sections, 8192).unwrap_err();
        assert!(matches!(fault, Fault::Structure { .. }), "{fault}");
    }
}

#[test]
fn a_pack_of_something_else_is_made_anew() {
    let setup = Setup::new();
    setup.attach(&items());
    let fewer = &items()[..2];
    assert!(matches!(setup.attach(fewer), Attached::Made));
    served(fewer);
    let longer = [Arc::new(Item::new("a", 10_001, 300, 1)), Arc::clone(&items()[1])];
    assert!(matches!(setup.attach(&longer), Attached::Made));
    served(&longer);
    // The model changes, under the same name and with the same length.
    fs::write(setup.dir.path().join("model"), "WEIGHTS").unwrap();
    assert!(!setup.cache.entries().unwrap()[0].is_current());
    assert!(matches!(setup.attach(&longer), Attached::Made));
    assert!(setup.cache.entries().unwrap()[0].is_current());
    assert_eq!(setup.listed().len(), 1);
}

#[test]
fn a_model_that_changes_while_it_is_packed_leaves_nothing() {
    let setup = Setup::new();
    let model = setup.dir.path().join("model");
    let attached = setup.attach_with(&items(), &mut |event| {
        if let Event::Begin { .. } = event {
            fs::write(&model, "others").unwrap();
        }
        ControlFlow::Continue(())
    });
    let changed = matches!(attached, Ok(Attached::Unusable(Unusable::Changed { .. })));
    assert!(changed, "{attached:?}");
    assert_eq!(setup.listed(), [""; 0]);
}

#[test]
fn what_cannot_be_finished_leaves_nothing() {
    let setup = Setup::new();
    for last in 0..4 {
        let mut n = 0;
        let attached = setup.attach_with(&items(), &mut |_| {
            n += 1;
            if n > last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(attached, Ok(Attached::Interrupted)), "{last}: {attached:?}");
        assert_eq!(setup.listed(), [""; 0]);
    }
    let damaged = Item { damaged: true, ..Item::new("d", 5000, 100, 4) };
    let mut all = items();
    all.push(Arc::new(damaged));
    let attached = setup.attach_with(&all, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(attached, Err(Error::EmptyPrompt)), "{attached:?}");
    assert_eq!(setup.listed(), [""; 0]);
}

#[test]
fn a_disk_without_room_and_a_folder_that_is_none_are_no_errors() {
    let setup = Setup::new();
    let large = [Arc::new(Item::new("large", 1 << 60, 4096, 1))];
    let attached = setup.attach(&large);
    let Attached::Unusable(Unusable::Space { needed, free, .. }) = attached else {
        panic!("{attached:?}");
    };
    assert!(needed > 1 << 60 && free < needed);
    assert_eq!(setup.listed(), [""; 0]);
    let endless = [Arc::new(Item::new("endless", u64::MAX - 9000, 4096, 1))];
    assert!(matches!(setup.attach(&endless), Attached::Unusable(_)));

    let cache = PackCache::in_dir(setup.dir.path().join("model"));
    let go_on = &mut |_: Event<'_>| ControlFlow::Continue(());
    let attached = cache.attach(&pack(&items()), setup.sources(), go_on).unwrap();
    assert!(matches!(attached, Attached::Unusable(Unusable::Io { .. })), "{attached:?}");
}

#[test]
fn one_writes_while_others_wait() {
    let setup = Setup::new();
    fs::create_dir_all(setup.cache.dir()).unwrap();
    let lock = setup.cache.try_lock().unwrap().unwrap();
    let attached = setup.attach_with(&items(), &mut |event| {
        assert!(matches!(event, Event::Waiting));
        ControlFlow::Break(())
    });
    assert!(matches!(attached, Ok(Attached::Interrupted)));
    // What the other one writes is left alone.
    let partial = setup.cache.dir().join("other.pack.partial");
    fs::write(&partial, "half").unwrap();
    assert_eq!(setup.cache.clean().unwrap(), 0);
    assert!(partial.exists());
    drop(lock);
    assert_eq!(setup.cache.clean().unwrap(), 4);
    assert!(!partial.exists());

    let slow = || {
        let item = Item { delay: Duration::from_millis(2), ..Item::new("a", 40_000, 1000, 1) };
        [Arc::new(item)]
    };
    let made = std::thread::scope(|scope| {
        let attach = || {
            let items = slow();
            let attached = setup.attach(&items);
            served(&items);
            matches!(attached, Attached::Made)
        };
        let threads = [(); 4].map(|()| scope.spawn(attach));
        threads.map(|thread| thread.join().unwrap()).iter().filter(|made| **made).count()
    });
    assert_eq!(made, 1);
}

#[test]
fn what_a_dead_writer_left_is_removed_at_the_next_start() {
    let setup = Setup::new();
    setup.attach(&items());
    fs::write(setup.cache.dir().join("other.pack.partial"), "half").unwrap();
    assert!(matches!(setup.attach(&items()), Attached::Found));
    assert_eq!(setup.listed().len(), 1);
}

const CHILD: &str = "PACK_CACHE_TEST_DIR";

/// The model of [`a_writer_that_is_killed_harms_nothing`], packed slowly, by another process.
#[test]
#[ignore = "a part of another test"]
fn packs_slowly() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let cache = PackCache::in_dir(dir.join("packs"));
    let sources = vec![SourceFile::now(&dir.join("model")).unwrap()];
    let go_on = &mut |_: Event<'_>| ControlFlow::Continue(());
    cache.attach(&pack(&slow_items(Duration::from_millis(1))), sources, go_on).unwrap();
}

fn slow_items(delay: Duration) -> Vec<Arc<Item>> {
    let item = |n: usize| Item { delay, ..Item::new(&n.to_string(), 400_000, 4000, n as u8) };
    (0..4).map(|n| Arc::new(item(n))).collect()
}

#[test]
fn a_writer_that_is_killed_harms_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model"), "weights").unwrap();
    let cache = PackCache::in_dir(dir.path().join("packs"));
    let sources = || vec![SourceFile::now(&dir.path().join("model")).unwrap()];
    let (path, begin) = (cache.path_of(KIND, &sources()), Instant::now());
    let partial = path.with_added_extension(PARTIAL);
    let (mut left, mut whole) = (0, 0);
    for round in 0..12u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["pack_cache::tests::packs_slowly", "--exact", "--ignored", "--test-threads=1"])
            .env(CHILD, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // At another moment each time, counted from when it begins to write.
        while !partial.exists() && !path.exists() && begin.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(30 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        // Under its name there is nothing or a whole pack.
        left += usize::from(partial.exists());
        whole += usize::from(path.exists());
        for entry in cache.entries().unwrap() {
            assert!(entry.is_current());
            let damaged = entry.pack.unwrap().damaged(&mut |_, _| ControlFlow::Continue(()));
            assert_eq!(damaged.unwrap(), Some(Vec::new()));
            fs::remove_file(&entry.path).unwrap();
        }
    }
    assert!(left > 1, "{left} of 12 were killed at work");
    assert!(whole < 12);
    let items = slow_items(Duration::ZERO);
    let go_on = &mut |_: Event<'_>| ControlFlow::Continue(());
    assert!(matches!(cache.attach(&pack(&items), sources(), go_on), Ok(Attached::Made)));
    served(&items);
    assert!(!partial.exists());
}
