//! Large values: read in place as one slice, without a copy, or in parts, without room for all of it.
//!
//! The pool has 4 MiB. A value of 1 MiB is read where it lies; one of 32 MiB is written from a stream and read
//! in parts, each checked against its own checksum.
//!
//! Run it by `cargo run -p vellum --example large_values`.

use std::io::{self, Read, Seek, SeekFrom};
use vellum::{Database, ErrorKind, Options};

/// Bytes that are never in memory all at once: byte `i` is a function of `i`.
struct Pattern {
    position: u64,
    end: u64,
}

fn byte_at(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Read for Pattern {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = (self.end - self.position).min(buffer.len() as u64) as usize;
        for target in &mut buffer[..count] {
            *target = byte_at(self.position);
            self.position += 1;
        }
        Ok(count)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SMALLER: u64 = 1 << 20;
    const LARGER: u64 = 32 << 20;
    let directory = tempfile::tempdir()?;
    let options = Options::default().pool_bytes(4 << 20);
    let database = Database::create(directory.path().join("large.vellum"), &options)?;
    let table = database.create_table("values")?;

    table.put_from("smaller", SMALLER, &mut Pattern { position: 0, end: SMALLER })?;
    table.put_from("larger", LARGER, &mut Pattern { position: 0, end: LARGER })?;

    // In place: the slice *is* the pages of the pool. They stay in memory as long as `value` lives.
    let value = table.value("smaller")?.ok_or("it was just stored")?;
    assert!(value.is_in_place());
    assert!(value.iter().enumerate().all(|(at, byte)| *byte == byte_at(at as u64)));
    println!("smaller: {} bytes read in place, as one slice", value.len());
    drop(value);

    // A value larger than the pool cannot be one slice, and says so.
    let refused = table.value("larger").err().ok_or("it does not fit into the pool")?;
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    println!("larger: {refused}");

    // In parts: anywhere, and from beginning to end. Only what is asked for is read from storage.
    let mut reader = table.reader("larger")?.ok_or("it was just stored")?;
    let middle = LARGER / 2 + 12_345;
    let mut part = [0; 100];
    reader.seek(SeekFrom::Start(middle))?;
    reader.read_exact(&mut part)?;
    assert!(part.iter().zip(middle..).all(|(byte, at)| *byte == byte_at(at)));
    println!("larger: 100 bytes from the middle, {} pages read so far", database.statistics().pages_read);

    reader.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; 256 << 10];
    let mut position = 0;
    loop {
        let count = reader.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        assert!(buffer[..count].iter().zip(position..).all(|(byte, at)| *byte == byte_at(at)));
        position += count as u64;
    }
    assert_eq!(position, LARGER);
    let statistics = database.statistics();
    println!("larger: {position} bytes read in parts and equal");
    println!("in memory: {} of at most {} pages", statistics.pages_resident, statistics.pages_limit);
    assert!(statistics.pages_resident <= statistics.pages_limit);

    // Replacing and removing give the space back.
    table.put("larger", "small now")?;
    assert!(table.remove("smaller")?);
    println!("after removal: {} pages allocated", database.statistics().pages_allocated);
    assert!(database.statistics().pages_allocated < 100);
    drop(reader);
    drop(table);
    database.close()?;
    Ok(())
}
