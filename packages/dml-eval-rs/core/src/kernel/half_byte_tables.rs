//! Tables that count the differing bits of two half bytes, and the arrangement of columns that
//! shuffles need for look-ups.

/// For each byte, counts the bits that differ between the low half and all 16 possible half bytes,
/// then likewise for the high half.
#[repr(align(32))]
pub(super) struct Tables([[u8; 32]; 256]);

pub(super) static TABLES: Tables = Tables(tables());

impl Tables {
    /// Returns the table for a byte. Tables are aligned to 32 bytes, the size of a table.
    #[inline(always)]
    pub fn of(&self, byte: u8) -> &[u8; 32] {
        &self.0[usize::from(byte)]
    }
}

const fn tables() -> [[u8; 32]; 256] {
    let mut tables = [[0; 32]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut half = 0;
        while half < 16 {
            tables[byte][half] = ((byte % 16) ^ half).count_ones() as u8;
            tables[byte][16 + half] = ((byte / 16) ^ half).count_ones() as u8;
            half += 1;
        }
        byte += 1;
    }
    tables
}

/// The number of columns per look-up of bytes in a table.
pub(super) const GROUP: usize = 16;

/// Arranges groups of columns into two parts of 32 bytes. A part contains the bytes a and b of all
/// words: its low half bytes are the low halves of all bytes a, then the high halves of all bytes
/// a; its high half bytes are the same halves of all bytes b.
#[inline(always)]
pub(super) fn arrange(columns: &mut [u32], parts: [(usize, usize); 2]) {
    for group in columns.as_chunks_mut::<GROUP>().0 {
        let words = *group;
        for (part, (a, b)) in group.as_chunks_mut::<8>().0.iter_mut().zip(parts) {
            let mut bytes = [0; 2 * GROUP];
            let (low, high) = bytes.split_at_mut(GROUP);
            for ((low, high), word) in low.iter_mut().zip(high).zip(words) {
                // Use shifts, because the compiler doesn't vectorize arrays of bytes.
                let (a, b) = ((word >> (8 * a)) as u8, (word >> (8 * b)) as u8);
                *low = a & 0x0f | b << 4;
                *high = a >> 4 | b & 0xf0;
            }
            for (word, bytes) in part.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
        }
    }
}
