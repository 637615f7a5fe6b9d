// fp32 weights as bf16 ones, rounded up or down by a threshold that each number keeps. See ludus/trainer/rounding.py.

#include "parallel.h"
#include "vectors.h"

namespace {

constexpr int64_t BLOCK = 4096;  // numbers of one task of a thread

inline void round_vector(const float* from, uint16_t* to, uint32_t place, uint32_t key) {
  save_by_chance(to, load_vec(from), mix((as_uint(LANE) + place) ^ key));
}

}  // namespace

extern "C" {

// first: place of the first number in its weight; places count modulo 2^32.
void ludus_round(const float* from, uint16_t* to, int64_t count, int64_t first, uint32_t key, int32_t num_threads) {
  parallel_for((count + BLOCK - 1) / BLOCK, Team(num_threads, count, BLOCK), [=](int64_t block) {
    const int64_t start = block * BLOCK, end = start + BLOCK < count ? start + BLOCK : count;
    int64_t at = start;
    for (; at + LANES <= end; at += LANES) round_vector(from + at, to + at, uint32_t(first + at), key);
    if (at == end) return;
    float own[LANES] = {};
    uint16_t out[LANES];
    std::memcpy(own, from + at, (end - at) * sizeof(float));
    round_vector(own, out, uint32_t(first + at), key);
    std::memcpy(to + at, out, (end - at) * sizeof(uint16_t));
  });
}

}  // extern "C"
