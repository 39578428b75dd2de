//! Tables of the bits in which half bytes differ.

/// For each byte, the number of bits in which its low half differs from each of the 16 values of half a byte, and then the same of
/// its high half.
#[repr(align(32))]
pub(super) struct Tables([[u8; 32]; 256]);

pub(super) static TABLES: Tables = Tables(tables());

impl Tables {
    /// Returns a byte's table, which is aligned to its size.
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
