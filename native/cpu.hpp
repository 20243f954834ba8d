// What this machine's CPU and kernel allow, probed once; and the cores we may use.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "table.hpp"

namespace headrace {

struct CpuFeatures {
    bool avx2 = false;  // with FMA and F16C
    bool avx_vnni = false;
    bool avx512 = false;  // F, BW, VL and DQ
    bool avx512_vnni = false;
    bool avx512_bf16 = false;  // and VNNI, and VBMI
    bool amx = false;          // the kernel has granted the tile registers too
    bool neon = false;
    bool dot_products = false;   // of Arm: SDOT
    bool byte_matrices = false;  // SMMLA
};

const CpuFeatures& cpu();
std::vector<std::pair<std::string, bool>> cpu_feature_list();

// Names of the kernel sets that run here, slowest first.
std::vector<std::string> isas();
// The best set that runs here, up to `cap` ("" = no cap). Throws std::invalid_argument for a name
// that this processor family does not know.
const KernelTable& kernels_up_to(const std::string& cap);

// One logical CPU for each physical core of this thread's affinity mask.
std::vector<int> physical_cores();

}  // namespace headrace
