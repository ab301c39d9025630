//! Questions and answers as bytes, so that they can cross to another process; and sites, which it has to know for that.
//!
//! Before it: [`Work`] and [`Found`], which are plain data beside opened files. After it: whatever takes bytes, a socket
//! between a loop and a helper in a process of its own, or memory that processes share (`shared_cache`).
//!
//! The form: a byte that counts the forms there have been, a byte for the variant, then the fields in their order,
//! numbers little-endian in the width of their type, texts behind their length. Of an answer this is the *outline*: it
//! says of each file where its content is, and the contents go beside it in the same order, bodies as they are (each as
//! long as its version says), descriptors by whatever way they can. So a body need not be copied to be written, nor
//! copied twice to be read, and who has it already passes over it.
//!
//! Both ends are the same program, of the same start. All the same the reader trusts nothing: what a dying process left
//! behind is [`Malformed`], never a panic and never an allocation larger than what was handed in.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use amped_core::event::{Found, ListWork, Missing, NameWork, Opened, Trouble, Work};
use amped_core::file::{FileVersion, NotUnpacked, Stored};
use amped_core::listing::{ListForm, ListKey, ListOrder, Listing};
use amped_core::site::{Site, Symlinks};
use amped_http::negotiate::Coding;

use crate::disk::Rules;

/// Counts the forms: whoever changes one, changes this.
const FORM: u8 = 5;

/// The bytes say nothing that could have been written here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("neither a question nor an answer: another form, or bytes that were damaged")
    }
}

impl std::error::Error for Malformed {}

/// Where the content of a file is that an outline tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: the reader has it, or has to find it.
    Nowhere,
    /// It is the next of the bodies, `version.size` bytes.
    Body,
    /// It is behind the next of the descriptors.
    Descriptor,
}

/// A question as bytes.
pub fn write_work(work: &Work) -> Vec<u8> {
    let mut out = vec![FORM];
    match work {
        Work::Name(NameWork { generation, site, path, edition, known, variants, unpack, missing }) => {
            out.push(0);
            put_name(&mut out, *generation, *site, path);
            out.extend(edition.to_le_bytes());
            out.extend([u8::from(*variants), u8::from(*unpack)]);
            put_count(&mut out, known.len());
            known.iter().for_each(|version| put_version(&mut out, version));
            out.push(u8::from(missing.is_some()));
            if let Some(Missing { name, coding, version }) = missing {
                put_text(&mut out, name);
                out.push(*coding as u8);
                put_version(&mut out, version);
            }
        }
        Work::List(ListWork { generation, site, path, edition, order, form }) => {
            out.push(1);
            put_name(&mut out, *generation, *site, path);
            out.extend(edition.to_le_bytes());
            out.extend([order.key as u8, u8::from(order.descending), *form as u8]);
        }
    }
    out
}

/// The question that [`write_work`] wrote.
///
/// # Errors
/// When it is none.
pub fn read_work(bytes: &[u8]) -> Result<Work, Malformed> {
    let mut from = Reader::of(bytes)?;
    let variant = from.byte()?;
    let (generation, site) = (from.u32()?, from.u16()?);
    let path: Arc<[u8]> = from.text()?.into();
    let work = match variant {
        0 => {
            let edition = from.u32()?;
            let (variants, unpack) = (from.one_of(&[false, true])?, from.one_of(&[false, true])?);
            let known = (0..from.u32()?).map(|_| from.version()).collect::<Result<_, _>>()?;
            let missing = match from.one_of(&[false, true])? {
                true => Some(Missing { name: from.text()?.into(), coding: from.coding()?, version: from.version()? }),
                false => None,
            };
            Work::Name(NameWork { generation, site, path, edition, known, variants, unpack, missing })
        }
        1 => {
            let edition = from.u32()?;
            let key = from.one_of(&[ListKey::Name, ListKey::Size, ListKey::Time])?;
            let descending = from.one_of(&[false, true])?;
            let form = from.one_of(&[ListForm::Html, ListForm::Json])?;
            let order = ListOrder { key, descending };
            Work::List(ListWork { generation, site, path, edition, order, form })
        }
        _ => return Err(Malformed),
    };
    from.end()?;
    Ok(work)
}

/// The outline of an answer; `place` says of each file where its content will be.
pub fn write_outline<'a, F>(found: &'a Found<F>, mut place: impl FnMut(&'a Opened<F>) -> Place) -> Vec<u8> {
    let mut out = vec![FORM];
    let mut put_opened = |out: &mut Vec<u8>, opened: &'a Opened<F>| {
        out.extend([opened.coding as u8, place(opened) as u8]);
        put_version(out, &opened.version);
    };
    match found {
        Found::File { name, files, not_unpacked } => {
            out.push(0);
            put_text(&mut out, name);
            out.push(not_unpacked.map_or(0, |why| 1 + why as u8));
            put_count(&mut out, files.len());
            files.iter().for_each(|opened| put_opened(&mut out, opened));
        }
        Found::NeedsSlash => out.push(1),
        Found::Directory(version) => {
            out.push(2);
            put_version(&mut out, version);
        }
        Found::Listing(Listing { page, digest, changed_ns, folder }) => {
            out.push(3);
            put_text(&mut out, page);
            out.extend(digest.to_le_bytes());
            out.extend(changed_ns.to_le_bytes());
            out.push(u8::from(folder.is_some()));
            folder.iter().for_each(|version| put_version(&mut out, version));
        }
        Found::Absent => out.push(4),
        Found::Forbidden => out.push(5),
        Found::Trouble(trouble) => out.extend([6, *trouble as u8]),
        Found::Missing(opened) => {
            out.push(7);
            put_opened(&mut out, opened);
        }
        Found::Variants { names, files } => {
            out.push(8);
            put_count(&mut out, files.len());
            for (name, opened) in names.iter().zip(files) {
                put_text(&mut out, name);
                put_opened(&mut out, opened);
            }
        }
    }
    out
}

/// The answer whose outline [`write_outline`] wrote; `fetch` brings the content of a file of this version from its place, or
/// of another that it puts in its place, and is asked in the order of the files.
///
/// # Errors
/// When it is none, or `fetch` says so.
pub fn read_outline<F>(
    bytes: &[u8],
    mut fetch: impl FnMut(&mut FileVersion, Place) -> Result<Option<Stored<F>>, Malformed>,
) -> Result<Found<F>, Malformed> {
    let mut from = Reader::of(bytes)?;
    let mut opened = |from: &mut Reader<'_>| {
        let coding = from.coding()?;
        let place = from.one_of(&[Place::Nowhere, Place::Body, Place::Descriptor])?;
        let mut version = from.version()?;
        let content = fetch(&mut version, place)?;
        Ok(Opened { coding, version, content })
    };
    let found = match from.byte()? {
        0 => {
            let name = Arc::from(from.text()?);
            let not_unpacked = from.one_of(&[None, Some(NotUnpacked::TooLarge), Some(NotUnpacked::Damaged)])?;
            let files = (0..from.u32()?).map(|_| opened(&mut from)).collect::<Result<_, _>>()?;
            Found::File { name, files, not_unpacked }
        }
        1 => Found::NeedsSlash,
        2 => Found::Directory(from.version()?),
        3 => {
            let page = Arc::new(from.text()?.to_vec());
            let (digest, changed_ns) = (from.u64()?, from.u64()? as i64);
            let folder = from.one_of(&[false, true])?.then(|| from.version()).transpose()?;
            Found::Listing(Listing { page, digest, changed_ns, folder })
        }
        4 => Found::Absent,
        5 => Found::Forbidden,
        6 => Found::Trouble(from.one_of(&[Trouble::Busy, Trouble::Exhausted, Trouble::Failed])?),
        7 => Found::Missing(opened(&mut from)?),
        8 => {
            let (mut names, mut files) = (Vec::new(), Vec::new());
            for _ in 0..from.u32()? {
                names.push(Arc::from(from.text()?));
                files.push(opened(&mut from)?);
            }
            Found::Variants { names, files }
        }
        _ => return Err(Malformed),
    };
    from.end()?;
    Ok(found)
}

/// A whole answer: its outline behind its length, then the bodies; and the opened files whose descriptors go with it, in
/// their order.
pub fn pack<F>(found: &Found<F>) -> (Vec<u8>, Vec<&F>) {
    let (mut bodies, mut files): (Vec<&[u8]>, _) = (Vec::new(), Vec::new());
    let outline = write_outline(found, |opened| match &opened.content {
        None => Place::Nowhere,
        Some(Stored::Memory(body)) => {
            bodies.push(body);
            Place::Body
        }
        Some(Stored::File(file)) => {
            files.push(file);
            Place::Descriptor
        }
    });
    let mut out = Vec::with_capacity(4 + outline.len() + bodies.iter().map(|body| body.len()).sum::<usize>());
    put_text(&mut out, &outline);
    bodies.iter().for_each(|body| out.extend_from_slice(body));
    (out, files)
}

/// The answer that [`pack`] packed, with the descriptors that came with it; `open` makes a file of one that was found in this
/// version, and tells which it has now.
///
/// # Errors
/// When it is none, or files are missing or left over.
pub fn unpack<D, F>(
    bytes: &[u8],
    descriptors: impl IntoIterator<Item = D>,
    open: impl Fn(D, FileVersion) -> (F, FileVersion),
) -> Result<Found<F>, Malformed> {
    let mut bodies = Reader(bytes);
    let mut descriptors = descriptors.into_iter();
    let found = read_outline(bodies.text()?, |version, place| {
        Ok(match place {
            Place::Nowhere => None,
            Place::Body => {
                let size = usize::try_from(version.size).map_err(|_| Malformed)?;
                Some(Stored::Memory(bodies.take(size)?.into()))
            }
            Place::Descriptor => {
                let (file, now) = open(descriptors.next().ok_or(Malformed)?, *version);
                *version = now;
                Some(Stored::File(file))
            }
        })
    })?;
    match descriptors.next() {
        None => bodies.end().map(|()| found),
        Some(_) => Err(Malformed),
    }
}

/// What goes for all sites, as bytes.
pub fn write_rules(rules: &Rules) -> Vec<u8> {
    let revalidate = u64::try_from(rules.revalidate.as_nanos()).unwrap_or(u64::MAX);
    let maxima = [rules.max_content_file_bytes, rules.max_unpacked_file_bytes].map(u64::to_le_bytes).concat();
    let mut out = [&[FORM][..], &maxima, &revalidate.to_le_bytes()].concat();
    put_count(&mut out, rules.secrets.len());
    rules.secrets.iter().for_each(|path| put_text(&mut out, path.as_os_str().as_bytes()));
    out
}

/// The rules that [`write_rules`] wrote.
///
/// # Errors
/// When they are none.
pub fn read_rules(bytes: &[u8]) -> Result<Rules, Malformed> {
    let mut from = Reader::of(bytes)?;
    let (max_content_file_bytes, max_unpacked_file_bytes) = (from.u64()?, from.u64()?);
    let revalidate = Duration::from_nanos(from.u64()?);
    let path = |from: &mut Reader<'_>| Ok(PathBuf::from(OsStr::from_bytes(from.text()?)));
    let secrets = (0..from.u32()?).map(|_| path(&mut from)).collect::<Result<_, _>>()?;
    let rules = Rules { secrets, max_content_file_bytes, max_unpacked_file_bytes, revalidate };
    from.end()?;
    Ok(rules)
}

/// Sites as bytes, as far as the disk side has to know them (`Disk::of_parts`); their roots go beside them.
pub fn write_sites<'a>(sites: impl IntoIterator<Item = (&'a Site, &'a Path)>) -> Vec<u8> {
    let mut out = vec![FORM];
    for (site, root) in sites {
        let Site { index, dotfiles, precompressed, user_dir, symlinks, .. } = site;
        put_text(&mut out, root.as_os_str().as_bytes());
        put_count(&mut out, index.len());
        index.iter().for_each(|name| put_text(&mut out, name.as_bytes()));
        put_count(&mut out, precompressed.len());
        out.extend(precompressed.iter().map(|&coding| coding as u8));
        out.extend([u8::from(*dotfiles), u8::from(user_dir.is_some()), *symlinks as u8]);
        put_text(&mut out, user_dir.as_deref().unwrap_or_default().as_bytes());
    }
    out
}

/// The sites that [`write_sites`] wrote, each with the path of its root.
///
/// # Errors
/// When they are none.
pub fn read_sites(bytes: &[u8]) -> Result<Vec<(Site, PathBuf)>, Malformed> {
    let mut from = Reader::of(bytes)?;
    let text = |from: &mut Reader<'_>| {
        let text = String::from_utf8(from.text()?.to_vec()).map_err(|_| Malformed)?;
        Ok(text.into_boxed_str())
    };
    let mut sites = Vec::new();
    while !from.0.is_empty() {
        let root = PathBuf::from(OsStr::from_bytes(from.text()?));
        let index = (0..from.u32()?).map(|_| text(&mut from)).collect::<Result<_, _>>()?;
        let precompressed = (0..from.u32()?).map(|_| from.coding()).collect::<Result<_, _>>()?;
        let (dotfiles, has_user_dir) = (from.one_of(&[false, true])?, from.one_of(&[false, true])?);
        let symlinks = from.one_of(&[Symlinks::Within, Symlinks::Owner, Symlinks::Any, Symlinks::None])?;
        let user_dir = Some(text(&mut from)?).filter(|_| has_user_dir);
        sites.push((Site { index, dotfiles, precompressed, user_dir, symlinks, ..Site::default() }, root));
    }
    Ok(sites)
}

fn put_name(out: &mut Vec<u8>, generation: u32, site: u16, path: &[u8]) {
    out.extend(generation.to_le_bytes());
    out.extend(site.to_le_bytes());
    put_text(out, path);
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_count(out, text.len());
    out.extend_from_slice(text);
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend(u32::try_from(count).expect("less than 4 GiB of anything").to_le_bytes());
}

fn put_version(out: &mut Vec<u8>, version: &FileVersion) {
    let FileVersion { device, inode, size, mtime_ns, ctime_ns, is_changing, is_unpacked } = *version;
    for word in [device, inode, size, mtime_ns as u64, ctime_ns as u64] {
        out.extend(word.to_le_bytes());
    }
    out.extend([u8::from(is_changing), u8::from(is_unpacked)]);
}

/// What is still to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Behind the byte that counts forms.
    fn of(bytes: &'a [u8]) -> Result<Reader<'a>, Malformed> {
        bytes.strip_prefix(&[FORM]).map(Reader).ok_or(Malformed)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*array)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    /// One of these, written as its place among them, which is also its number as `as u8` gives it.
    fn one_of<T: Copy>(&mut self, all: &[T]) -> Result<T, Malformed> {
        all.get(usize::from(self.byte()?)).copied().ok_or(Malformed)
    }

    fn coding(&mut self) -> Result<Coding, Malformed> {
        self.one_of(&[Coding::Identity, Coding::Gzip, Coding::Zstd, Coding::Brotli])
    }

    fn version(&mut self) -> Result<FileVersion, Malformed> {
        let (device, inode, size) = (self.u64()?, self.u64()?, self.u64()?);
        let (mtime_ns, ctime_ns) = (self.u64()? as i64, self.u64()? as i64);
        let (is_changing, is_unpacked) = (self.one_of(&[false, true])?, self.one_of(&[false, true])?);
        Ok(FileVersion { device, inode, size, mtime_ns, ctime_ns, is_changing, is_unpacked })
    }

    fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = Arc<[u8]>> {
        prop::collection::vec(any::<u8>(), 0..60).prop_map(Arc::from)
    }

    fn coding() -> impl Strategy<Value = Coding> {
        prop::sample::select(vec![Coding::Identity, Coding::Gzip, Coding::Zstd, Coding::Brotli])
    }

    fn version() -> impl Strategy<Value = FileVersion> {
        any::<((u64, u64), u64, i64, i64, bool, bool)>().prop_map(
            |((device, inode), size, mtime_ns, ctime_ns, is_changing, is_unpacked)| FileVersion {
                device,
                inode,
                size,
                mtime_ns,
                ctime_ns,
                is_changing,
                is_unpacked,
            },
        )
    }

    fn work() -> impl Strategy<Value = Work> {
        let name = || (any::<u32>(), any::<u16>(), text());
        let known = prop::collection::vec(version(), 0..4);
        let missing = prop::option::of((text(), coding(), version()).prop_map(|(name, coding, version)| Missing {
            name,
            coding,
            version,
        }));
        let keys = prop::sample::select(vec![ListKey::Name, ListKey::Size, ListKey::Time]);
        let forms = prop::sample::select(vec![ListForm::Html, ListForm::Json]);
        prop_oneof![
            (name(), any::<u32>(), known, any::<(bool, bool)>(), missing).prop_map(
                |((generation, site, path), edition, known, (variants, unpack), missing)| {
                    Work::Name(NameWork { generation, site, path, edition, known, variants, unpack, missing })
                }
            ),
            (name(), any::<u32>(), keys, any::<bool>(), forms).prop_map(
                |((generation, site, path), edition, key, descending, form)| {
                    let order = ListOrder { key, descending };
                    Work::List(ListWork { generation, site, path, edition, order, form })
                }
            ),
        ]
    }

    /// Without content, with a body of less than `body_end` bytes, or with a number that stands for an opened file.
    pub(crate) fn opened(body_end: usize) -> impl Strategy<Value = Opened<u32>> {
        let bodies = (any::<u8>(), 0..body_end)
            .prop_map(|(first, length)| (0..length).map(|n| first.wrapping_add(n as u8)).collect::<Vec<u8>>());
        (coding(), version(), bodies, any::<Option<u32>>(), any::<bool>()).prop_map(
            |(coding, version, body, file, in_memory)| match in_memory {
                true => {
                    let version = FileVersion { size: body.len() as u64, ..version };
                    Opened { coding, version, content: Some(Stored::Memory(body.into())) }
                }
                false => Opened { coding, version, content: file.map(Stored::File) },
            },
        )
    }

    fn as_found(number: u32, version: FileVersion) -> (u32, FileVersion) {
        (number, version)
    }

    fn found() -> impl Strategy<Value = Found<u32>> {
        let not_unpacked = prop::sample::select(vec![None, Some(NotUnpacked::TooLarge), Some(NotUnpacked::Damaged)]);
        let troubles = prop::sample::select(vec![Trouble::Busy, Trouble::Exhausted, Trouble::Failed]);
        prop_oneof![
            4 => (text(), prop::collection::vec(opened(100), 0..4), not_unpacked)
                .prop_map(|(name, files, not_unpacked)| Found::File { name, files, not_unpacked }),
            1 => (0..4, version()).prop_map(|(which, version)| match which {
                0 => Found::NeedsSlash,
                1 => Found::Directory(version),
                2 => Found::Absent,
                _ => Found::Forbidden,
            }),
            1 => prop::collection::vec((text(), opened(100)), 0..4).prop_map(|all| {
                let (names, files) = all.into_iter().unzip();
                Found::Variants { names, files }
            }),
            1 => (prop::collection::vec(any::<u8>(), 0..200), any::<i64>(), prop::option::of(version()))
                .prop_map(|(page, changed_ns, folder)| Found::Listing(Listing::new(page, changed_ns, folder))),
            1 => troubles.prop_map(Found::Trouble),
            1 => opened(100).prop_map(Found::Missing),
        ]
    }

    proptest! {
        #[test]
        fn a_question_comes_back_as_it_was(work in work()) {
            prop_assert_eq!(read_work(&write_work(&work)), Ok(work));
        }

        #[test]
        fn an_answer_comes_back_as_it_was(found in found()) {
            let (bytes, files) = pack(&found);
            let back = unpack(&bytes, files.iter().map(|&&number| number), as_found);
            prop_assert_eq!(format!("{back:?}"), format!("{:?}", Ok::<_, Malformed>(found)));
        }

        /// Cut short, continued or with a file too many, nothing passes; with bytes changed, it may, but never panics.
        #[test]
        fn what_was_damaged_is_refused(
            work in work(),
            found in found(),
            cut in any::<prop::sample::Index>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut question = write_work(&work);
            prop_assert_eq!(read_work(&question[..cut.index(question.len())]), Err(Malformed));
            question.push(0);
            prop_assert_eq!(read_work(&question), Err(Malformed));

            let (mut answer, files) = pack(&found);
            let files = || files.iter().map(|&&number| number);
            prop_assert!(unpack(&answer[..cut.index(answer.len())], files(), as_found).is_err());
            prop_assert!(unpack(&answer, files().chain([0]), as_found).is_err());
            answer.push(0);
            prop_assert!(unpack(&answer, files(), as_found).is_err());

            for (at, byte) in damage {
                let (in_question, in_answer) = (at.index(question.len()), at.index(answer.len()));
                question[in_question] = byte;
                answer[in_answer] = byte;
            }
            let _ = read_work(&question);
            let _ = unpack(&answer, files(), as_found);
        }
    }

    proptest! {
        #[test]
        fn a_site_comes_back_as_the_disk_side_needs_it(
            sites in prop::collection::vec(
                (prop::collection::vec("[a-z.]{0,9}", 0..3), any::<bool>(), any::<Option<String>>(), text()), 0..4),
            rules in any::<(u64, u64, u64)>(),
            secrets in prop::collection::vec("[a-z/]{0,9}", 0..3),
            cut in any::<prop::sample::Index>(),
        ) {
            let sites: Vec<(Site, PathBuf)> = sites.into_iter().map(|(index, dotfiles, user_dir, root)| {
                let precompressed = if dotfiles { vec![Coding::Brotli, Coding::Gzip] } else { Vec::new() };
                let index = index.into_iter().map(String::into_boxed_str).collect();
                let user_dir = user_dir.map(String::into_boxed_str);
                let site = Site { index, dotfiles, precompressed, user_dir, ..Site::default() };
                (site, PathBuf::from(OsStr::from_bytes(&root)))
            }).collect();
            let bytes = write_sites(sites.iter().map(|(site, root)| (site, &**root)));
            prop_assert_eq!(format!("{:?}", read_sites(&bytes)), format!("{:?}", Ok::<_, Malformed>(sites)));
            // Cut between two of them it is whole, which the number of descriptors beside it tells.
            let _ = read_sites(&bytes[..cut.index(bytes.len())]);
            let secrets = secrets.into_iter().map(PathBuf::from).collect();
            let (max_content_file_bytes, max_unpacked_file_bytes, nanos) = rules;
            let revalidate = Duration::from_nanos(nanos);
            let rules = Rules { secrets, max_content_file_bytes, max_unpacked_file_bytes, revalidate };
            prop_assert_eq!(read_rules(&write_rules(&rules)), Ok(rules));
        }
    }

    #[test]
    fn another_form_is_refused() {
        let (mut bytes, _) = pack(&Found::<u32>::Absent);
        assert!(unpack(&bytes, [0u32; 0], as_found).is_ok());
        bytes[4] += 1;
        assert!(unpack(&bytes, [0u32; 0], as_found).is_err());
    }
}
