//! Whether a program needs a loader, which must then exist on the machine that runs it (elf(5)).

/// The type of the header that names the loader.
const INTERP: u32 = 3;

/// The loader that a 64-bit, little-endian program names. Returns `None` for a static program, and for any other file.
pub(crate) fn interpreter(program: &[u8]) -> Option<String> {
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) =
        (read_u64(program, 32)?, read_u16(program, 54)?, read_u16(program, 56)?);
    let headers = (0..count).filter_map(|number| table.checked_add(number * size));
    let header = headers.into_iter().find(|at| read_u32(program, *at) == Some(INTERP))?;
    let (from, len) =
        (read_u64(program, header.checked_add(8)?)?, read_u64(program, header.checked_add(32)?)?);
    let path = program.get(from..from.checked_add(len)?)?;
    Some(String::from_utf8_lossy(path.strip_suffix(b"\0").unwrap_or(path)).into_owned())
}

fn bytes<const N: usize>(program: &[u8], at: usize) -> Option<[u8; N]> {
    program.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn read_u16(program: &[u8], at: usize) -> Option<usize> {
    bytes(program, at).map(|it| u16::from_le_bytes(it).into())
}

fn read_u32(program: &[u8], at: usize) -> Option<u32> {
    bytes(program, at).map(u32::from_le_bytes)
}

fn read_u64(program: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(bytes(program, at)?)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with two headers, the second of this type, which names /lib/ld.so.
    fn program(kind: u32) -> Vec<u8> {
        let mut program = vec![0; 64 + 2 * 56];
        program[..6].copy_from_slice(b"\x7fELF\x02\x01");
        program[32] = 64;
        program[54] = 56;
        program[56] = 2;
        let (header, path) = (64 + 56, b"/lib/ld.so\0");
        program[header..header + 4].copy_from_slice(&kind.to_le_bytes());
        program[header + 8] = program.len() as u8;
        program[header + 32] = path.len() as u8;
        program.extend(path);
        program
    }

    #[test]
    fn only_a_program_that_names_a_loader_needs_one() {
        assert_eq!(interpreter(&program(INTERP)).as_deref(), Some("/lib/ld.so"));
        assert_eq!(interpreter(&program(1)), None);
        assert_eq!(interpreter(b"#!/bin/sh\n"), None);
    }

    #[test]
    fn a_program_that_breaks_off_or_points_anywhere_is_read_all_the_same() {
        let whole = program(INTERP);
        for len in 0..whole.len() {
            assert_eq!(interpreter(&whole[..len]), None, "{len} bytes");
        }
        for at in 6..64 + 2 * 56 {
            let mut wrong = whole.clone();
            wrong[at] = 0xff;
            let _ = interpreter(&wrong);
        }
    }
}
