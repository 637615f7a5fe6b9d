// Products of bf16 on the tile unit of Xeons since Sapphire Rapids (AMX), where pairs of bf16 have a slow instruction.
//
// An instruction adds to 16 x 16 sums what 32 values of 16 rows of W and of 16 rows of x give. W's rows are read where
// they lie; those of x, which are few, are packed: a tile holds, of 16 rows, pair after pair of 32 values.
// Every sum runs along the width in one order, whatever tiles stand beside it: a row of y has the same bits in any
// company.

#pragma once

#include "processor.h"
#include "product.h"

#ifdef LUDUS_TILES
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <memory>

namespace {

constexpr int SIDE = 16;
constexpr int64_t TILE_DEPTH = 32;  // values of the width
constexpr int64_t TILE_WORDS = 256;
// Packed rows of x shall lie in the second-level cache (2 MiB) beside the columns of W that meet them.
constexpr int64_t MOST_TILED_BYTES = 768 << 10;

// Linux keeps room for a thread's tiles only for a process that has asked. False: it is refused, or not known.
inline bool may_use_tiles() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  static const bool granted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return granted;
}

// Every tile of a thread is whole while this lives.
class WholeTiles {
 public:
  WholeTiles() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t num_rows[16] = {};
    } shapes;
    for (int tile = 0; tile < 8; tile++) {
      shapes.row_bytes[tile] = 64;
      shapes.num_rows[tile] = SIDE;
    }
    _tile_loadconfig(&shapes);
  }
  ~WholeTiles() { _tile_release(); }
};

// Rows of 16 words become columns.
inline void transpose(__m512i (&rows)[SIDE]) {
  __m512i t[SIDE];
#pragma GCC unroll 8
  for (int i = 0; i < SIDE; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < SIDE; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // Lane L of rows[i + j] holds column 4 L + j of four rows; lanes 0 and 2 meet (0x88), and lanes 1 and 3 (0xdd).
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    const __m512i even_low = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0x88);
    const __m512i even_high = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0xdd);
    const __m512i odd_high = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0xdd);
    t[j] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    t[12 + j] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
  std::memcpy(rows, t, sizeof t);
}

// `count` values of bf16, at most 32, and zeros.
inline __m512i load_some(const uint16_t* at, int64_t count) {
  return _mm512_maskz_loadu_epi16(count >= TILE_DEPTH ? ~0u : (1u << count) - 1, at);
}

// Rows of x, zeros where there are none: [step][pair][row][2].
inline void pack_tiles(const uint16_t* x, int64_t stride, int64_t num_rows, int64_t width, uint16_t* to) {
  for (int64_t k = 0; k < width; k += TILE_DEPTH, to += 2 * TILE_WORDS) {
    __m512i rows[SIDE];
    for (int r = 0; r < SIDE; r++) rows[r] = r < num_rows ? load_some(x + r * stride + k, width - k) : __m512i{};
    transpose(rows);
    std::memcpy(to, rows, sizeof rows);
  }
}

// Rows of W as a tile can read them: zeros where rows or width end.
inline void copy_columns(const uint16_t* weight, int64_t stride, int64_t num_columns, int64_t width, int64_t padded_width,
                         int64_t padded_columns, uint16_t* to) {
  for (int64_t n = 0; n < padded_columns; n++)
    for (int64_t k = 0; k < padded_width; k += TILE_DEPTH, to += TILE_DEPTH)
      _mm512_store_si512(to, n < num_columns ? load_some(weight + n * stride + k, width - k) : __m512i{});
}

// Some columns of W, and what is asked for while they are multiplied.
struct Columns {
  const uint16_t* weight;
  int64_t stride;
  int64_t ahead;  // values from here to the columns that come next; 0: nothing is asked for
};

// Sums of A tiles of W against B tiles of x: sums[a][b][column][row].
template <int A, int B>
inline void meet(const Columns& columns, const uint16_t* x, int64_t num_steps, float* sums) {
  static_assert(A * B <= 4 && B <= 2);
  const uint16_t* w = columns.weight;
  const int64_t stride = columns.stride, bytes = 2 * stride, tile = SIDE * stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < num_steps; step++, w += TILE_DEPTH, x += 2 * TILE_WORDS) {
    if (columns.ahead)
      for (int n = 0; n < A * SIDE; n++) __builtin_prefetch(w + columns.ahead + n * stride);
    _tile_loadd(6, x, 64);
    if constexpr (B == 2) _tile_loadd(7, x + num_steps * 2 * TILE_WORDS, 64);
    _tile_loadd(4, w, bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (B == 2) _tile_dpbf16ps(1, 4, 7);
    if constexpr (A > 1) {
      _tile_loadd(5, w + tile, bytes);
      if constexpr (B == 1) _tile_dpbf16ps(1, 5, 6);
      if constexpr (B == 2) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    if constexpr (A > 2) {
      _tile_loadd(4, w + 2 * tile, bytes);
      _tile_dpbf16ps(2, 4, 6);
    }
    if constexpr (A > 3) {
      _tile_loadd(5, w + 3 * tile, bytes);
      _tile_dpbf16ps(3, 5, 6);
    }
  }
  _tile_stored(0, sums, 64);
  if constexpr (A * B > 1) _tile_stored(1, sums + TILE_WORDS, 64);
  if constexpr (A * B > 2) _tile_stored(2, sums + 2 * TILE_WORDS, 64);
  if constexpr (A * B > 3) _tile_stored(3, sums + 3 * TILE_WORDS, 64);
}

inline void meet_of(int num_tiles, int num_blocks, const Columns& columns, const uint16_t* x, int64_t num_steps,
                    float* sums) {
  if (num_blocks == 2) return num_tiles == 2 ? meet<2, 2>(columns, x, num_steps, sums)
                                             : meet<1, 2>(columns, x, num_steps, sums);
  if (num_tiles == 1) return meet<1, 1>(columns, x, num_steps, sums);
  if (num_tiles == 2) return meet<2, 1>(columns, x, num_steps, sums);
  if (num_tiles == 3) return meet<3, 1>(columns, x, num_steps, sums);
  return meet<4, 1>(columns, x, num_steps, sums);
}

// A tile of sums, [column][row], to its place in y.
inline void save_tile(const float* sums, const uint16_t* bias, bool adds, int64_t num_columns, int64_t num_rows,
                      uint16_t* out, int64_t out_stride) {
  __m512i values[SIDE];
  std::memcpy(values, sums, sizeof values);
  transpose(values);
  const __mmask16 present = num_columns >= SIDE ? __mmask16(~0) : __mmask16((1u << num_columns) - 1);
  const auto read = [present](const uint16_t* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(present, from)), 16));
  };
  const __m512 added = bias ? read(bias) : _mm512_setzero_ps();
  for (int64_t r = 0; r < SIDE && r < num_rows; r++) {
    __m512 value = _mm512_add_ps(_mm512_castsi512_ps(values[r]), added);
    if (adds) value = _mm512_add_ps(value, read(out + r * out_stride));
    _mm256_mask_storeu_epi16(out + r * out_stride, present, (__m256i)_mm512_cvtneps_pbh(value));
  }
}

// Packed rows against a thread's columns.
inline void multiply_share(const Problem& problem, const Share& share, int64_t first_row, int64_t num_rows,
                           const uint16_t* packed, uint16_t* copied) {
  const auto* weight = (const uint16_t*)problem.weight;
  const auto* bias = (const uint16_t*)problem.bias;
  const int64_t num_steps = (problem.width + TILE_DEPTH - 1) / TILE_DEPTH, padded = num_steps * TILE_DEPTH;
  const int64_t num_blocks = (num_rows + SIDE - 1) / SIDE, most_columns = (num_blocks == 1 ? 4 : 2) * SIDE;
  alignas(64) float sums[4 * TILE_WORDS];
  for (int64_t column = share.begin; column < share.end; column += most_columns) {
    const int64_t left = share.end - column, taken = left < most_columns ? left : most_columns;
    const int num_tiles = int((taken + SIDE - 1) / SIDE);
    const uint16_t* own = weight + column * problem.weight_stride;
    Columns columns = {own, problem.weight_stride, left > 2 * most_columns ? most_columns * problem.weight_stride : 0};
    if (taken % SIDE || padded != problem.width) {
      copy_columns(own, problem.weight_stride, taken, problem.width, padded, num_tiles * SIDE, copied);
      columns = {copied, padded, 0};
      asm volatile("" ::: "memory");  // a tile's load does not tell the compiler what it reads
    }
    for (int64_t block = 0; block < num_blocks; block += 2) {
      const int together = num_blocks - block == 1 ? 1 : 2;
      meet_of(num_tiles, together, columns, packed + block * SIDE * padded, num_steps, sums);
      columns.ahead = 0;
      for (int i = 0; i < num_tiles * together; i++) {
        const int64_t n = i / together * SIDE, row = (block + i % together) * SIDE;
        auto* out = (uint16_t*)problem.out + (first_row + row) * problem.out_stride + column + n;
        save_tile(sums + i * TILE_WORDS, bias ? bias + column + n : nullptr, problem.adds, taken - n,
                  num_rows - row, out, problem.out_stride);
      }
    }
  }
}

inline void multiply_tiled(const Problem& problem, int num_threads) {
  const int64_t num_steps = (problem.width + TILE_DEPTH - 1) / TILE_DEPTH, padded = num_steps * TILE_DEPTH;
  const int64_t fitting = MOST_TILED_BYTES / (2 * padded) / (2 * SIDE) * (2 * SIDE);
  const int64_t most_rows = fitting > 0 ? fitting : 2 * SIDE;
  const int64_t some_rows = problem.num_rows < most_rows ? (problem.num_rows + SIDE - 1) / SIDE * SIDE : most_rows;
  const int64_t row_lines = padded / TILE_DEPTH, panel_lines = 4 * SIDE * row_lines;
  const std::unique_ptr<Line[]> scratch(new Line[some_rows * row_lines + num_threads * panel_lines]);
  auto* packed = (uint16_t*)scratch.get();
  for (int64_t first = 0; first < problem.num_rows; first += most_rows) {
    const int64_t left = problem.num_rows - first, num_rows = left < most_rows ? left : most_rows;
    parallel_for((num_rows + SIDE - 1) / SIDE, Team(num_threads, num_rows * problem.width, MANY_VALUES),
                 [&](int64_t tile) {
                   const int64_t row = tile * SIDE;
                   pack_tiles((const uint16_t*)problem.x + (first + row) * problem.x_stride, problem.x_stride,
                              num_rows - row, problem.width, packed + row * padded);
                 });
    const Team team = multipliers(problem, num_rows, num_threads);
    on_workers(team, [&](int worker) {
      const WholeTiles tiles;
      multiply_share(problem, Share(problem.num_columns, 2 * SIDE, worker, team.num_workers), first, num_rows, packed,
                     (uint16_t*)(scratch.get() + some_rows * row_lines + worker * panel_lines));
    });
  }
}

}  // namespace
#endif
