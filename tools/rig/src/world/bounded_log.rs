//! A log of bounded size: a current file, and an older one. When the current file is full it replaces the older one,
//! and a new file begins.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The size of each of the two files, in bytes.
pub const FILE_SIZE: u64 = 4 << 20;
/// The longest line, in bytes. A longer line is cut into several.
const LINE: u64 = 64 << 10;

fn older(path: &Path) -> PathBuf {
    path.with_extension("log.1")
}

/// Copies lines into the log at `path` until `from` ends. Lines that cannot be written are left out, because otherwise
/// the writer at the other end of the pipe would have to wait.
pub fn copy(from: impl Read, path: &Path, file_size: u64) {
    let mut from = BufReader::new(from);
    let (mut file, mut size) = (File::create(path).ok(), 0);
    let mut line = Vec::new();
    while matches!(from.by_ref().take(LINE).read_until(b'\n', &mut line), Ok(1..)) {
        let len = line.len() as u64;
        if size > 0 && size + len > file_size {
            let renamed = fs::rename(path, older(path));
            (file, size) = (renamed.and_then(|()| File::create(path)).ok(), 0);
        }
        if file.as_mut().is_some_and(|file| file.write_all(&line).is_ok()) {
            size += len;
        }
        line.clear();
    }
}

/// Reads a log while it is written, from its oldest line.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    file: File,
    /// The beginning of a line whose end is not written yet.
    begun: Vec<u8>,
}

/// The new lines of a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NewLines {
    pub lines: Vec<String>,
    /// Whether earlier lines were replaced before they could be read.
    pub lost: bool,
}

impl LogReader {
    /// A reader at the oldest line.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(older(path)).or_else(|_| File::open(path))?;
        Ok(Self { path: path.to_owned(), file, begun: Vec::new() })
    }

    /// The lines that were written since the last call.
    pub fn new_lines(&mut self) -> io::Result<NewLines> {
        let mut new = NewLines::default();
        loop {
            // The inodes are read before the file. If this file is no longer the current one then, it does not grow any
            // more, so the read gets all of its lines.
            let (current, before) = (inode(&self.path), inode(&older(&self.path)));
            self.file.read_to_end(&mut self.begun)?;
            let own = self.file.metadata()?.ino();
            // Between two files there is no current file for a moment.
            if current.is_none_or(|current| current == own) {
                break;
            }
            let is_lost = before != Some(own);
            let next = if is_lost { older(&self.path) } else { self.path.clone() };
            let Ok(next) = File::open(next) else { break };
            new.lost |= is_lost;
            self.file = next;
        }
        if let Some(end) = self.begun.iter().rposition(|byte| *byte == b'\n') {
            let whole: Vec<u8> = self.begun.drain(..=end).collect();
            let lines = whole[..end].split(|byte| *byte == b'\n');
            new.lines.extend(lines.map(|line| String::from_utf8_lossy(line).into_owned()));
        }
        Ok(new)
    }
}

fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|file| file.ino())
}

/// All lines of a log.
pub fn lines(path: &Path) -> io::Result<Vec<String>> {
    Ok(LogReader::open(path)?.new_lines()?.lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(from: u32, to: u32) -> Vec<String> {
        (from..to).map(|number| format!("line {number:04}")).collect()
    }

    fn text(from: u32, to: u32) -> Vec<u8> {
        numbers(from, to).iter().flat_map(|line| format!("{line}\n").into_bytes()).collect()
    }

    /// The size of ten lines.
    const SMALL: u64 = 100;

    #[test]
    fn a_log_keeps_its_last_lines_whole_in_bounded_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.log");
        copy(text(0, 1000).as_slice(), &path, SMALL);
        assert_eq!(lines(&path).unwrap(), numbers(980, 1000));
        let sizes = fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().metadata().unwrap());
        assert_eq!(sizes.map(|it| it.len()).collect::<Vec<u64>>(), [SMALL, SMALL]);
        // A line that is longer than a file is kept, in pieces.
        copy(vec![b'x'; 200_000].as_slice(), &path, SMALL);
        assert!(fs::metadata(&path).unwrap().len() <= LINE);
    }

    #[test]
    fn a_reader_sees_every_line_once_and_says_when_some_were_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.log");
        let (pipe, mut writer) = io::pipe().unwrap();
        let log = path.clone();
        let copier = std::thread::spawn(move || copy(pipe, &log, SMALL));
        let mut write = |text: &[u8]| writer.write_all(text).unwrap();
        let await_lines = |reader: &mut LogReader, count: usize| {
            let mut all = NewLines::default();
            let start = std::time::Instant::now();
            while all.lines.len() < count {
                let new = reader.new_lines().unwrap();
                all.lines.extend(new.lines);
                all.lost |= new.lost;
                assert!(start.elapsed().as_secs() < 10, "{all:?}");
            }
            all
        };
        write(&text(0, 5));
        while !path.exists() {}
        let mut reader = LogReader::open(&path).unwrap();
        assert_eq!(await_lines(&mut reader, 5), NewLines { lines: numbers(0, 5), lost: false });
        // The reader continues across the change of files.
        write(&text(5, 15));
        assert_eq!(await_lines(&mut reader, 10), NewLines { lines: numbers(5, 15), lost: false });
        // An incomplete line is not returned.
        write(b"line 0");
        write(b"015\n");
        assert_eq!(await_lines(&mut reader, 1).lines, numbers(15, 16));
        drop(writer);
        copier.join().unwrap();
        copy(text(16, 100).as_slice(), &path, SMALL);
        let new = reader.new_lines().unwrap();
        assert!(new.lost);
        assert_eq!(new.lines.last().unwrap(), "line 0099");
    }
}
