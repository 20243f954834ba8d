#include "cpu.hpp"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <set>
#include <stdexcept>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace headrace {
namespace {

#if defined(__x86_64__)
// State components that the operating system saves: a set bit means the registers may be used.
std::uint64_t enabled_state() {
    std::uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<std::uint64_t>(high) << 32 | low;
}

// Linux hands the tile registers out on request only.
bool grant_tiles() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

CpuFeatures probe() {
    CpuFeatures f;
    std::uint32_t a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
    const bool fma = c >> 12 & 1, os_saves = c >> 27 & 1, avx = c >> 28 & 1, f16c = c >> 29 & 1;
    if (!os_saves || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
    const std::uint64_t state = enabled_state();
    const bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xe6) == 0xe6;
    const bool tiles = (state & 0x60000) == 0x60000;
    f.avx2 = ymm && avx && fma && f16c && (b >> 5 & 1);
    const bool foundation = b >> 16 & 1, dq = b >> 17 & 1, bw = b >> 30 & 1, vl = b >> 31 & 1;
    f.avx512 = f.avx2 && zmm && foundation && dq && bw && vl;
    f.avx512_vnni = f.avx512 && (c >> 11 & 1);
    const bool vbmi = c >> 1 & 1, amx = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);
    std::uint32_t a1 = 0;
    if (__get_cpuid_count(7, 1, &a1, &b, &c, &d)) {
        f.avx_vnni = f.avx2 && (a1 >> 4 & 1);
        f.avx512_bf16 = f.avx512_vnni && vbmi && (a1 >> 5 & 1);
    }
    f.amx = f.avx512_bf16 && tiles && amx && grant_tiles();
    return f;
}
#elif defined(__aarch64__)
CpuFeatures probe() {
    CpuFeatures f;
    f.neon = true;
    f.dot_products = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
    f.byte_matrices = f.dot_products && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
    return f;
}
#else
CpuFeatures probe() { return {}; }
#endif

std::vector<const KernelTable*> tables() {
    std::vector<const KernelTable*> found{&scalar::table()};
#if defined(__x86_64__)
    if (cpu().avx2) found.push_back(&avx2::table());
#if !defined(HEADRACE_NARROW)
    if (cpu().avx_vnni) found.push_back(&avxvnni::table());
    if (cpu().avx512_bf16) {
        found.push_back(&avx512bf16::table());
    } else if (cpu().avx512_vnni) {
        found.push_back(&avx512vnni::table());
    } else if (cpu().avx512) {
        found.push_back(&avx512::table());
    }
    if (cpu().amx) found.push_back(&amx::table());
#endif
#elif defined(__aarch64__)
    found.push_back(&neon::table());
    if (cpu().dot_products) found.push_back(&neondot::table());
    if (cpu().byte_matrices) found.push_back(&neonmm::table());
#endif
    return found;
}

std::string siblings_of(int cpu) {
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                       "/topology/thread_siblings_list");
    std::string line;
    return std::getline(file, line) ? line : "cpu" + std::to_string(cpu);
}

}  // namespace

const CpuFeatures& cpu() {
    static const CpuFeatures features = probe();
    return features;
}

std::vector<std::pair<std::string, bool>> cpu_feature_list() {
    const CpuFeatures& f = cpu();
    return {{"avx2", f.avx2},
            {"avx_vnni", f.avx_vnni},
            {"avx512f", f.avx512},
            {"avx512_vnni", f.avx512_vnni},
            {"avx512_bf16", f.avx512_bf16},
            {"amx", f.amx},
            {"neon", f.neon},
            {"asimddp", f.dot_products},
            {"i8mm", f.byte_matrices}};
}

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const KernelTable* table : tables()) names.emplace_back(table->name);
    return names;
}

const KernelTable& kernels_up_to(const std::string& cap) {
    const auto found = tables();
    if (cap.empty()) return *found.back();
#if defined(__aarch64__)
    const std::vector<std::string> known{"scalar", "neon", "neondot", "neonmm"};
#else
    const std::vector<std::string> known{"scalar", "avx2", "avxvnni", "avx512", "amx"};
#endif
    const auto rank = [&](const std::string& name) {
        return std::find(known.begin(), known.end(), name) - known.begin();
    };
    if (rank(cap) == static_cast<long>(known.size())) {
        std::string names;
        for (const std::string& name : known) names += " " + name;
        throw std::invalid_argument("isa '" + cap +
                                    "' is no kernel set of this processor family; " +
                                    "expected one of:" + names + "; leave it empty for the best");
    }
    const KernelTable* best = found.front();
    for (const KernelTable* table : found)
        if (rank(table->name) <= rank(cap)) best = table;
    return *best;
}

std::vector<int> physical_cores() {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    std::vector<int> cores;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
        std::set<std::string> seen;
        for (int i = 0; i < CPU_SETSIZE; ++i)
            if (CPU_ISSET(i, &mask) && seen.insert(siblings_of(i)).second) cores.push_back(i);
    }
    if (cores.empty()) {
        const int n = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
        for (int i = 0; i < n; ++i) cores.push_back(i);
    }
    return cores;
}

}  // namespace headrace
