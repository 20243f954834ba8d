// CRC-32C (Castagnoli, reflected, as iSCSI and ext4 have it), by the CPU's own instruction where
// there is one.
#pragma once

#include <cstdint>

namespace headrace {

// Of `nbytes` at `data`; `before` is the checksum of what came before them, 0 at the start.
uint32_t crc32c(const void* data, int64_t nbytes, uint32_t before);
// The same by tables alone, for processors without the instruction.
uint32_t crc32c_by_table(const void* data, int64_t nbytes, uint32_t before);

}  // namespace headrace
