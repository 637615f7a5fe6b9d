// y = x W^T + b straight from the weight's own rows, for any number of rows of x from one to thousands.
//
// Weights change at every publish and are shared with the trainer, so nothing is kept of them between calls. Instead
// the rows of x, which are few, are repacked: a block holds, for one step of 16 bytes along the width, the same 16
// bytes of several rows. One such piece of W, spread over a register, then meets ROWS rows of x in one instruction:
//
//   register of x     x[0][k..]  x[1][k..]  x[2][k..]  x[3][k..]
//   register of W     w[n][k..]  w[n][k..]  w[n][k..]  w[n][k..]     one load that repeats 16 bytes
//   sums              four partial sums of y[0][n], of y[1][n], of y[2][n], of y[3][n]
//
// An output's partial sums run along the width in one order and meet in one order, whatever rows, columns and threads
// there are: a row of y has the same bits in any company.

#include <cstdint>
#include <cstring>
#include <memory>

#include "linear_tiles.h"
#include "numbers.h"
#include "processor.h"
#include "product.h"

namespace {

typedef float Four __attribute__((vector_size(16)));

#ifdef LUDUS_AVX512
typedef __m512 Lanes;
constexpr int MOST_GROUPS = 6;  // 6 x 4 sums, 6 registers of x and one of W: 31 of 32 registers
inline Lanes spread_four(Four w) { return _mm512_broadcast_f32x4((__m128)w); }
#elif defined(LUDUS_AVX)
typedef float Lanes __attribute__((vector_size(32)));
constexpr int MOST_GROUPS = 3;  // 3 x 4 sums, 3 registers of x and one of W: 16 registers
inline Lanes spread_four(Four w) { return (Lanes)_mm256_insertf128_ps(_mm256_castps128_ps256((__m128)w), (__m128)w, 1); }
#else
typedef Four Lanes;
constexpr int MOST_GROUPS = 3;  // 3 x 4 sums, 3 registers of x and one of W: 16 registers
inline Lanes spread_four(Four w) { return w; }
#endif
constexpr int ROWS = sizeof(Lanes) / sizeof(Four);
// Columns of one reduction: the four sums of a column and row collapse to one, four columns fill a Four again.
constexpr int COLUMNS = 4;
// A packed block of rows shall lie in the second-level cache beside the panel of W that meets it.
constexpr int64_t MOST_PACKED_BYTES = 384 << 10;
constexpr int64_t MOST_PANEL_BYTES = 192 << 10;
// A tile asks for the rows one tile below, or for those this far below if that is more: what memory at its full rate
// delivers within its latency.
constexpr int BYTES_AHEAD = 16 << 10;

inline Four load_four(const float* at) {
  Four out;
  std::memcpy(&out, at, sizeof out);
  return out;
}
inline Four load_four(const uint16_t* at) {
  typedef uint32_t Bits __attribute__((vector_size(16)));
  typedef uint16_t Halves __attribute__((vector_size(8)));
  Halves halves;
  std::memcpy(&halves, at, sizeof halves);
  return (Four)(__builtin_convertvector(halves, Bits) << 16);
}

inline void save_four(float* at, Four values) { std::memcpy(at, &values, sizeof values); }
inline void save_four(uint16_t* at, Four values) {
#ifdef LUDUS_PAIRS
  _mm_storel_epi64((__m128i*)at, (__m128i)_mm_cvtneps_pbh((__m128)values));
#else
  for (int i = 0; i < 4; i++) save(at + i, values[i]);
#endif
}

// ---- products ------------------------------------------------------------------------------------------------------

// One multiply-add per value, in fp32.
template <typename T>
struct Singles {
  typedef T Value;
  typedef float Packed;
  static constexpr int DEPTH = 4;  // values of the width in one step

  static void pack(const T* from, int count, float* to) {
    for (int i = 0; i < DEPTH; i++) to[i] = i < count ? load(from + i) : 0.f;
  }
  static Lanes spread(const T* w) { return spread_four(load_four(w)); }
  static Lanes spread_some(const T* w, int count) {
    T some[DEPTH];
    for (int i = 0; i < DEPTH; i++) some[i] = i < count ? w[i] : T(0);
    return spread(some);
  }
  static Lanes add(Lanes sums, Lanes x, Lanes w) { return sums + x * w; }
};

#ifdef LUDUS_PAIRS
// Two products of bf16 and their sum in fp32 per lane and instruction.
struct Pairs {
  typedef uint16_t Value;
  typedef uint16_t Packed;
  static constexpr int DEPTH = 8;

  static void pack(const uint16_t* from, int count, uint16_t* to) {
    if (count == DEPTH) std::memcpy(to, from, 2 * DEPTH);
    else
      for (int i = 0; i < DEPTH; i++) to[i] = i < count ? from[i] : 0;
  }
  static Lanes spread(const uint16_t* w) {
    return _mm512_castsi512_ps(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)w)));
  }
  static Lanes spread_some(const uint16_t* w, int count) {
    const __m128i some = _mm_maskz_loadu_epi16(__mmask8((1u << count) - 1), w);
    return _mm512_castsi512_ps(_mm512_broadcast_i32x4(some));
  }
  static Lanes add(Lanes sums, Lanes x, Lanes w) { return _mm512_dpbf16_ps(sums, (__m512bh)x, (__m512bh)w); }
};
#endif

// ---- one tile ------------------------------------------------------------------------------------------------------

// Collapses the partial sums of four columns: out[row] holds columns 0 to 3 of that row.
inline void collapse(const Lanes* sums, Four* out) {
#ifdef LUDUS_AVX512
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(sums[0], sums[1]), _mm512_unpackhi_ps(sums[0], sums[1]));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(sums[2], sums[3]), _mm512_unpackhi_ps(sums[2], sums[3]));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  out[0] = (Four)_mm512_extractf32x4_ps(all, 0);
  out[1] = (Four)_mm512_extractf32x4_ps(all, 1);
  out[2] = (Four)_mm512_extractf32x4_ps(all, 2);
  out[3] = (Four)_mm512_extractf32x4_ps(all, 3);
#elif defined(LUDUS_AVX)
  const __m256 a = (__m256)sums[0], b = (__m256)sums[1], c = (__m256)sums[2], d = (__m256)sums[3];
  const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const __m256d low = _mm256_unpacklo_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd));
  const __m256d high = _mm256_unpackhi_pd(_mm256_castps_pd(ab), _mm256_castps_pd(cd));
  const __m256 all = _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high));
  out[0] = (Four)_mm256_castps256_ps128(all);
  out[1] = (Four)_mm256_extractf128_ps(all, 1);
#else
  for (int column = 0; column < COLUMNS; column++)
    out[0][column] = (sums[column][0] + sums[column][2]) + (sums[column][1] + sums[column][3]);
#endif
}

// What a tile reads and writes.
template <typename P>
struct Tile {
  const typename P::Packed* x;
  const typename P::Value* weight;
  int64_t weight_stride;
  const typename P::Value* bias;
  typename P::Value* out;
  int64_t out_stride;
  bool adds;
  int64_t num_rows;  // of G * ROWS, those that exist
  int64_t width;
};

// Sums of G groups of rows of x against C rows of W, along the whole width.
template <typename P, int G, int C>
inline __attribute__((always_inline)) void multiply(const Tile<P>& tile, int64_t stride, Lanes (&sums)[G][C]) {
  typedef typename P::Value Value;
  constexpr int LINE = 64 / sizeof(Value);  // values in a line of cache
  const typename P::Packed* x = tile.x;
  const Value *w = tile.weight, *const end = w + tile.width;
  auto step = [&](auto spread) __attribute__((always_inline)) {
    Lanes own[G];
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) std::memcpy(&own[g], x + g * ROWS * P::DEPTH, sizeof(Lanes));
#pragma GCC unroll 16
    for (int c = 0; c < C; c++) {
      const Lanes other = spread(w + c * stride);
#pragma GCC unroll 8
      for (int g = 0; g < G; g++) sums[g][c] = P::add(sums[g][c], own[g], other);
    }
    x += G * ROWS * P::DEPTH;
    w += P::DEPTH;
  };
  const int64_t row_bytes = tile.width * int64_t(sizeof(Value));
  const int64_t ahead = (C * row_bytes < BYTES_AHEAD ? BYTES_AHEAD / row_bytes + 1 : C) * stride;
  // Counted: GCC unrolls an open loop around these sixteen times as well, too much for the cache of instructions.
  const int num_lines = int(tile.width / LINE);
  for (int line = 0; line < num_lines; line++) {
#pragma GCC unroll 16
    for (int c = 0; c < C; c++) __builtin_prefetch(w + ahead + c * stride);
#pragma GCC unroll 16
    for (int i = 0; i < LINE / P::DEPTH; i++) step(P::spread);
  }
  while (end - w >= P::DEPTH) step(P::spread);
  if (w < end) {
    const int count = int(end - w);
    step([count](const Value* at) __attribute__((always_inline)) { return P::spread_some(at, count); });
  }
}

// G groups of ROWS rows of x against C columns. With stride 0 all C are one and the same, and only that is stored.
template <typename P, int G, int C>
void multiply_tile(const Tile<P>& tile, bool alone) {
  Lanes sums[G][C];
#pragma GCC unroll 8
  for (int g = 0; g < G; g++)
#pragma GCC unroll 16
    for (int c = 0; c < C; c++) sums[g][c] = Lanes{};
  multiply<P, G, C>(tile, alone ? 0 : tile.weight_stride, sums);
#pragma GCC unroll 4
  for (int first = 0; first < C; first += COLUMNS) {
    Four bias = {};
    if (tile.bias) bias = alone ? Four{} + load(tile.bias) : load_four(tile.bias + first);
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) {
      Four result[ROWS];
      collapse(&sums[g][first], result);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) {
        const int64_t row = g * ROWS + r;
        if (row >= tile.num_rows) break;
        auto* out = tile.out + row * tile.out_stride + first;
        Four sum = result[r] + bias;
        if (tile.adds) sum += alone ? Four{} + load(out) : load_four(out);
        if (alone) save(out, sum[0]);
        else save_four(out, sum);
      }
    }
  }
}

// ---- all of it -----------------------------------------------------------------------------------------------------

// Rows of x in blocks of at most MOST_GROUPS groups of ROWS, as equal as can be.
struct Blocks {
  int64_t num_rows, num_groups, count;
  explicit Blocks(int64_t rows)
      : num_rows(rows), num_groups((rows + ROWS - 1) / ROWS), count((num_groups + MOST_GROUPS - 1) / MOST_GROUPS) {}
  int64_t first_group(int64_t block) const { return block * num_groups / count; }
  int64_t of_group(int64_t group) const { return ((group + 1) * count - 1) / num_groups; }
};

// One group of rows into its place: [step][group of the block][row][DEPTH], zeros where row or width end.
template <typename P>
void pack_group(const Problem& problem, int64_t first_row, const Blocks& blocks, int64_t group, int64_t num_steps,
                typename P::Packed* packed) {
  constexpr int SIZE = ROWS * P::DEPTH;
  const int64_t block = blocks.of_group(group), first = blocks.first_group(block);
  const int64_t num_groups = blocks.first_group(block + 1) - first;
  typename P::Packed* to = packed + first * num_steps * SIZE + (group - first) * SIZE;
  for (int r = 0; r < ROWS; r++) {
    const int64_t row = group * ROWS + r;
    const auto* from = (const typename P::Value*)problem.x + (first_row + row) * problem.x_stride;
    for (int64_t step = 0; step < num_steps; step++) {
      const int64_t left = row < blocks.num_rows ? problem.width - step * P::DEPTH : 0;
      const int count = int(left < P::DEPTH ? left : P::DEPTH);
      P::pack(from + step * P::DEPTH, count, to + (step * num_groups * ROWS + r) * P::DEPTH);
    }
  }
}

// Columns of a tile: enough sums to hide the latency of the multiply-add, few enough for the registers.
constexpr int tile_columns(int groups) {
#ifdef LUDUS_AVX512
  return groups == 1 ? 16 : groups == 2 ? 12 : groups == 3 ? 8 : 4;
#else
  return groups == 1 ? 12 : 4;
#endif
}
// Threads divide the columns at multiples of this: only the last tile of all is narrow.
constexpr int64_t THREAD_UNIT = 16;
// A panel holds a multiple of this many columns, whole tiles of every kind.
constexpr int64_t PANEL_UNIT = 48;

// One block of rows against `end` columns.
template <typename P, int G>
void multiply_panel(Tile<P> tile, int64_t end) {
  constexpr int WIDE = tile_columns(G);
  while (end > 0) {
    const int taken = end >= WIDE ? WIDE : end >= COLUMNS ? COLUMNS : 1;
    if (taken == WIDE) multiply_tile<P, G, WIDE>(tile, false);
    else multiply_tile<P, G, COLUMNS>(tile, taken == 1);
    tile.weight += taken * tile.weight_stride;
    tile.bias += tile.bias ? taken : 0;
    tile.out += taken;
    end -= taken;
  }
}

template <typename P>
void multiply_panel_of(int groups, const Tile<P>& tile, int64_t end) {
  if (groups == 1) return multiply_panel<P, 1>(tile, end);
  if (groups == 2) return multiply_panel<P, 2>(tile, end);
  if (groups == 3) return multiply_panel<P, 3>(tile, end);
#ifdef LUDUS_AVX512
  if (groups == 4) return multiply_panel<P, 4>(tile, end);
  if (groups == 5) return multiply_panel<P, 5>(tile, end);
  return multiply_panel<P, 6>(tile, end);
#endif
}

// All packed rows against columns `begin` to `end`.
template <typename P>
void multiply_columns(const Problem& problem, int64_t first_row, const Blocks& blocks, const typename P::Packed* packed,
                      int64_t begin, int64_t end) {
  typedef typename P::Value Value;
  const int64_t num_steps = (problem.width + P::DEPTH - 1) / P::DEPTH;
  const int64_t fitting = MOST_PANEL_BYTES / int64_t(sizeof(Value)) / (problem.width + 1) / PANEL_UNIT * PANEL_UNIT;
  const int64_t panel = fitting > 0 ? fitting : PANEL_UNIT;
  for (int64_t column = begin; column < end; column += panel)
    for (int64_t block = 0; block < blocks.count; block++) {
      const int64_t group = blocks.first_group(block), row = group * ROWS;
      Tile<P> tile;
      tile.x = packed + group * num_steps * ROWS * P::DEPTH;
      tile.weight = (const Value*)problem.weight + column * problem.weight_stride;
      tile.weight_stride = problem.weight_stride;
      tile.bias = problem.bias ? (const Value*)problem.bias + column : nullptr;
      tile.out = (Value*)problem.out + (first_row + row) * problem.out_stride + column;
      tile.out_stride = problem.out_stride;
      tile.adds = problem.adds;
      tile.num_rows = blocks.num_rows - row;
      tile.width = problem.width;
      multiply_panel_of(int(blocks.first_group(block + 1) - group), tile, end - column < panel ? end - column : panel);
    }
}

template <typename P>
void multiply_all(const Problem& problem, int num_threads) {
  const int64_t num_steps = (problem.width + P::DEPTH - 1) / P::DEPTH;
  const int64_t row_bytes = (num_steps + 1) * int64_t(sizeof(Four));
  const int64_t fitting = MOST_PACKED_BYTES / row_bytes / (ROWS * MOST_GROUPS) * (ROWS * MOST_GROUPS);
  const int64_t most_rows = fitting > 0 ? fitting : ROWS * MOST_GROUPS;
  const int64_t some_rows = problem.num_rows < most_rows ? problem.num_rows : most_rows;
  const int64_t packed_bytes = (some_rows + ROWS - 1) / ROWS * num_steps * int64_t(sizeof(Lanes));
  const std::unique_ptr<Line[]> scratch(new Line[(packed_bytes + 63) / 64]);
  auto* packed = (typename P::Packed*)scratch.get();
  for (int64_t first = 0; first < problem.num_rows; first += most_rows) {
    const Blocks blocks(problem.num_rows - first < most_rows ? problem.num_rows - first : most_rows);
    parallel_for(blocks.num_groups, Team(num_threads, blocks.num_rows * problem.width, MANY_VALUES),
                 [&](int64_t group) { pack_group<P>(problem, first, blocks, group, num_steps, packed); });
    const Team team = multipliers(problem, blocks.num_rows, num_threads);
    on_workers(team, [&](int worker) {
      const Share share(problem.num_columns, THREAD_UNIT, worker, team.num_workers);
      multiply_columns<P>(problem, first, blocks, packed, share.begin, share.end);
    });
  }
}

}  // namespace

extern "C" {

void ludus_linear(const void* x, int64_t x_stride, const void* weight, int64_t weight_stride, const void* bias,
                  void* out, int64_t out_stride, int32_t adds, int64_t num_rows, int64_t num_columns, int64_t width,
                  int32_t dtype, int32_t num_threads) {
  const Problem problem = {x,          x_stride,  weight,   weight_stride, bias, out,
                           out_stride, adds != 0, num_rows, num_columns,   width};
  if (dtype == FP32) return multiply_all<Singles<float>>(problem, num_threads);
#ifdef LUDUS_TILES
  if (may_use_tiles()) return multiply_tiled(problem, num_threads);
#endif
#ifdef LUDUS_PAIRS
  multiply_all<Pairs>(problem, num_threads);
#else
  multiply_all<Singles<uint16_t>>(problem, num_threads);
#endif
}

}  // extern "C"
