// Attention over a forest of tokens in depth-first order, forward and backward, for training.
//
// Plain C interface, no torch headers. The results of a token are computed in one order of operations, whatever the
// number of threads.
//
// Token i sees the keys j <= i with i < end[j], the index after the last descendant of j; with a window only those
// less than `window` positions back. Work is cut into tiles of TILE queries, and a tile visits only the blocks of
// BLOCK keys that one of its queries can see.
//
// Every product is sums of (broadcast word) x (vector of 16 words), a word being one fp32 number or a pair of bf16
// along the dimension summed over. Hence two packings of keys, values, queries and gradients:
//   along   [block][D / STEP][16]   word = numbers 2d and 2d+1 of one token     (sums over the head's width)
//   across  [token / STEP][D]       word = number d of tokens 2t and 2t+1       (sums over tokens)

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "parallel.h"
#include "scores.h"
#include "words.h"

namespace {

constexpr int BLOCK = 16;  // keys of a block: lanes of a vector
constexpr int TILE = 32;   // queries of a tile: enough to reuse a block from cache, few pairs wasted on the diagonal

struct Shape {
  int32_t num_heads, num_kv_heads, num_tokens, head_dim, dtype;
};

// Element (head, token, 0); the numbers of a token lie side by side.
struct Heads {
  void* data;
  int64_t head_stride, token_stride;
};

// ---- packing --------------------------------------------------------------------------------------------------------

template <class M, typename T>
void pack_along(const T* tokens, int64_t stride, int count, int dim, typename M::Word* to) {
  for (int j = 0; j < dim / M::STEP; j++)
    for (int n = 0; n < BLOCK; n++) to[j * BLOCK + n] = n < count ? M::along(tokens + n * stride, j) : 0;
}

// `count` tokens; those that are missing to `padded` are zero.
template <class M, typename T>
void pack_across(const T* tokens, int64_t stride, int count, int padded, int dim, typename M::Word* to) {
  static const T zeros[256] = {};
  for (int t = 0; t < padded; t += M::STEP) {
    const T* first = t < count ? tokens + t * stride : zeros;
    const T* second = t + 1 < count ? tokens + (t + 1) * stride : zeros;
    for (int d = 0; d < dim; d++) to[(t / M::STEP) * dim + d] = M::across(first, second, d);
  }
}

// `count` tokens as rows of words; those that are missing to TILE are zero.
template <class M, typename T>
void pack_rows(const T* tokens, int64_t stride, int count, int dim, typename M::Word* to) {
  const int width = dim / M::STEP;
  for (int t = 0; t < TILE; t++)
    for (int j = 0; j < width; j++) to[t * width + j] = t < count ? M::along(tokens + t * stride, j) : 0;
}

// ---- which keys a tile sees -----------------------------------------------------------------------------------------

struct Tile {
  int start, count;
  std::vector<int> blocks;     // seen by at least one query, rising
  std::vector<bool> is_whole;  // by all of them
};

struct Forest {
  std::vector<int32_t> ends, positions;  // padded to whole blocks; what pads is seen by nobody
  std::vector<Tile> tiles;
};

Forest read_forest(const int32_t* ends, const int32_t* positions, int num_tokens, int window) {
  Forest forest;
  const int num_blocks = (num_tokens + BLOCK - 1) / BLOCK;
  forest.ends.assign(num_blocks * BLOCK, 0);
  forest.positions.assign(num_blocks * BLOCK, 0);
  std::memcpy(forest.ends.data(), ends, num_tokens * sizeof(int32_t));
  std::memcpy(forest.positions.data(), positions, num_tokens * sizeof(int32_t));
  for (int start = 0; start < num_tokens; start += TILE) {
    Tile tile{start, num_tokens - start < TILE ? num_tokens - start : TILE, {}, {}};
    int lowest = positions[start], highest = lowest;
    for (int i = 1; i < tile.count; i++) {
      lowest = positions[start + i] < lowest ? positions[start + i] : lowest;
      highest = positions[start + i] > highest ? positions[start + i] : highest;
    }
    for (int block = 0; block * BLOCK < start + tile.count; block++) {
      bool is_seen = false, is_whole = true;
      for (int j = block * BLOCK; j < (block + 1) * BLOCK; j++) {
        is_seen |= forest.ends[j] > start && (window == 0 || lowest - forest.positions[j] < window);
        is_whole &= j <= start && forest.ends[j] >= start + tile.count &&
                    (window == 0 || highest - forest.positions[j] < window);
      }
      if (is_seen) tile.blocks.push_back(block), tile.is_whole.push_back(is_whole);
    }
    forest.tiles.push_back(tile);
  }
  return forest;
}

inline IntVec seen_keys(const Forest& forest, int window, int query, int block) {
  const IntVec key = block * BLOCK + LANE;
  IntVec seen = (key <= query) & (load_ints(forest.ends.data() + block * BLOCK) > query);
  if (window > 0) {
    const IntVec back = forest.positions[query] - load_ints(forest.positions.data() + block * BLOCK);
    seen &= back < window;
  }
  return seen;
}

// ---- one tile -------------------------------------------------------------------------------------------------------

// Keys or values of one head in both packings.
template <class M>
struct Packed {
  std::vector<typename M::Word> along, across;
};

template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  T* at(int64_t token) const { return data + token * stride; }
};

template <class M>
struct Scratch {
  typedef typename M::Word Word;
  std::vector<float> scores, grads, slopes;  // [TILE][columns]: one column for each key of the tile's blocks
  std::vector<Word> row_words, weight_words, grad_words;
  std::vector<Word> query_rows, grad_rows, query_across, grad_across;

  void fit(int64_t num_columns, int dim) {
    const size_t size = size_t(TILE) * num_columns;
    for (auto* each : {&scores, &grads, &slopes})
      if (each->size() < size) each->resize(size);
    for (auto* each : {&row_words, &weight_words, &grad_words})
      if (each->size() < size) each->resize(size);
    for (auto* each : {&query_rows, &grad_rows, &query_across, &grad_across}) each->resize(size_t(TILE) * dim);
  }
};

// to[r][c] = rows[r] . key c, for the keys of the tile's blocks
template <class M>
void multiply_keys(const Tile& tile, const typename M::Word* rows, const typename M::Word* along, int dim, float* to) {
  const int width = dim / M::STEP, num_blocks = int(tile.blocks.size());
  const int64_t num_columns = int64_t(num_blocks) * BLOCK;
  for (int row = 0; row < tile.count; row += ROWS)
    in_runs(num_blocks, [&](auto wide, int at) {
      constexpr int N = decltype(wide)::value;
      const typename M::Word* b[N];
      for (int n = 0; n < N; n++) b[n] = along + int64_t(tile.blocks[at + n]) * width * BLOCK;
      Vec sum[ROWS][N] = {};
      add_products<M, N>(sum, rows + row * width, width, 1, b, BLOCK, width);
      for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < N; n++) store_vec(to + (row + r) * num_columns + (at + n) * BLOCK, sum[r][n]);
    });
}

// to[r][d] = scale[r] * sum over keys of weights[r][key] * number d of the key
template <class M, typename T>
void weigh_keys(const Tile& tile, const typename M::Word* weights, const typename M::Word* across, int dim,
                const float* scales, T* to, int64_t to_stride) {
  const int num_blocks = int(tile.blocks.size());
  const int64_t row_words = int64_t(num_blocks) * BLOCK / M::STEP;
  for (int row = 0; row < tile.count; row += ROWS)
    in_runs(dim / 16, [&](auto wide, int at) {
      constexpr int N = decltype(wide)::value;
      Vec sum[ROWS][N] = {};
      for (int i = 0; i < num_blocks; i++) {
        const typename M::Word* block = across + int64_t(tile.blocks[i]) * (BLOCK / M::STEP) * dim + at * 16;
        const typename M::Word* b[N];
        for (int n = 0; n < N; n++) b[n] = block + n * 16;
        add_products<M, N>(sum, weights + row * row_words + i * (BLOCK / M::STEP), row_words, 1, b, dim,
                           BLOCK / M::STEP);
      }
      for (int r = 0; r < ROWS && row + r < tile.count; r++)
        for (int n = 0; n < N; n++) save(to + (row + r) * to_stride + (at + n) * 16, sum[r][n] * scales[row + r]);
    });
}

// totals[key][d] += sum over the tile's rows of weights[row][key] * number d of the row
template <class M>
void add_weighted_rows(const Tile& tile, const typename M::Word* weights, const typename M::Word* across, int dim,
                       float* totals) {
  const int64_t num_columns = int64_t(tile.blocks.size()) * BLOCK;
  for (size_t i = 0; i < tile.blocks.size(); i++)
    for (int key = 0; key < BLOCK; key += ROWS)
      in_runs(dim / 16, [&](auto wide, int at) {
        constexpr int N = decltype(wide)::value;
        float* total = totals + (int64_t(tile.blocks[i]) * BLOCK + key) * dim + at * 16;
        const typename M::Word* b[N];
        Vec sum[ROWS][N];
        for (int n = 0; n < N; n++) b[n] = across + (at + n) * 16;
        for (int r = 0; r < ROWS; r++)
          for (int n = 0; n < N; n++) sum[r][n] = load_vec(total + r * dim + n * 16);
        add_products<M, N>(sum, weights + i * BLOCK + key, 1, num_columns, b, dim, TILE / M::STEP);
        for (int r = 0; r < ROWS; r++)
          for (int n = 0; n < N; n++) store_vec(total + r * dim + n * 16, sum[r][n]);
      });
}

// What all tiles of one call share.
struct Call {
  const Forest& forest;
  const Rule& rule;
  int dim;
};

// Scaled, capped and masked scores of one query and block i of its tile; `slope`: the cap's derivative.
inline Vec finish_score(const Call& call, const Tile& tile, int i, int query, Vec score, Vec* slope) {
  score *= call.rule.scale;
  if (call.rule.softcap > 0.f) {
    const Vec bent = tanh_vec(score / call.rule.softcap);
    score = bent * call.rule.softcap;
    if (slope) *slope = 1.f - bent * bent;
  }
  if (tile.is_whole[i]) return score;
  return select(seen_keys(call.forest, call.rule.window, query, tile.blocks[i]), score, fill(HIDDEN));
}

template <class M, typename T>
void attend_tile(const Call& call, const Tile& tile, float sink, Rows<const T> q, const Packed<M>& keys, const Packed<M>& values,
                 Rows<T> out, float* log_totals, Scratch<M>& scratch) {
  const int num_blocks = int(tile.blocks.size());
  const int64_t num_columns = int64_t(num_blocks) * BLOCK;
  scratch.fit(num_columns, call.dim);
  pack_rows<M>(q.at(tile.start), q.stride, tile.count, call.dim, scratch.query_rows.data());
  multiply_keys<M>(tile, scratch.query_rows.data(), keys.along.data(), call.dim, scratch.scores.data());
  float inverse[TILE];
  for (int row = 0; row < tile.count; row++) {
    float* scores = scratch.scores.data() + row * num_columns;
    Vec top = fill(HIDDEN), total = {};
    for (int i = 0; i < num_blocks; i++) {
      const Vec score = finish_score(call, tile, i, tile.start + row, load_vec(scores + i * BLOCK), nullptr);
      store_vec(scores + i * BLOCK, score);
      top = larger(top, score);
    }
    const float largest = std::max(max_of(top), sink);
    for (int i = 0; i < num_blocks; i++) {
      const Vec weight = exp_vec(load_vec(scores + i * BLOCK) - largest);
      total += weight;
      M::put_row(scratch.row_words.data() + row * (num_columns / M::STEP), i * BLOCK, weight);
    }
    const float sum = sum_of(total) + exp_one(sink - largest);
    inverse[row] = 1.f / sum;
    log_totals[tile.start + row] = largest + std::log(sum);
  }
  weigh_keys<M>(tile, scratch.row_words.data(), values.across.data(), call.dim, inverse, out.at(tile.start),
                out.stride);
}

// Scores and gradients of the weights of one query become weights and (with a cap) slopes; returns the sum over keys
// of weight times gradient.
template <class M>
float weigh_row(const Call& call, const Tile& tile, int row, float log_total, Scratch<M>& scratch) {
  const int64_t num_columns = int64_t(tile.blocks.size()) * BLOCK;
  const bool is_capped = call.rule.softcap > 0.f;
  Vec total = {}, slope;
  for (size_t i = 0; i < tile.blocks.size(); i++) {
    const int64_t at = row * num_columns + i * BLOCK;
    float* score = scratch.scores.data() + at;
    const Vec finished =
        finish_score(call, tile, int(i), tile.start + row, load_vec(score), is_capped ? &slope : nullptr);
    const Vec weight = exp_vec(finished - log_total);
    if (is_capped) store_vec(scratch.slopes.data() + at, slope);
    store_vec(score, weight);
    total += weight * load_vec(scratch.grads.data() + at);
  }
  return sum_of(total);
}

// From scores and gradients of the weights to words of the weights and of the gradients of the scores.
template <class M>
void differentiate_softmax(const Call& call, const Tile& tile, const float* log_totals, Scratch<M>& scratch) {
  const int64_t num_columns = int64_t(tile.blocks.size()) * BLOCK;
  const bool is_capped = call.rule.softcap > 0.f;
  for (int row = 0; row < TILE; row += 2) {
    float totals[2] = {};
    for (int s = 0; s < 2; s++)
      if (row + s < tile.count) totals[s] = weigh_row(call, tile, row + s, log_totals[tile.start + row + s], scratch);
    for (int64_t column = 0; column < num_columns; column += BLOCK) {
      Vec weight[2] = {}, grad[2] = {};
      for (int s = 0; s < 2; s++) {
        if (row + s >= tile.count) continue;  // no query: neither weight nor gradient
        const int64_t at = (row + s) * num_columns + column;
        weight[s] = load_vec(scratch.scores.data() + at);
        grad[s] = weight[s] * (load_vec(scratch.grads.data() + at) - totals[s]) * call.rule.scale;
        if (is_capped) grad[s] *= load_vec(scratch.slopes.data() + at);
        M::put_row(scratch.row_words.data() + (row + s) * (num_columns / M::STEP), column, grad[s]);
      }
      M::put_rows(scratch.weight_words.data(), num_columns, row, column, weight[0], weight[1]);
      M::put_rows(scratch.grad_words.data(), num_columns, row, column, grad[0], grad[1]);
    }
  }
}

// grad_k and grad_v: fp32 of one query head, [token][dim], that the tile's share is added to.
template <class M, typename T>
void differentiate_tile(const Call& call, const Tile& tile, Rows<const T> q, Rows<const T> grad, const Packed<M>& keys,
                        const Packed<M>& values, const float* log_totals, Rows<T> grad_q, float* grad_k, float* grad_v,
                        Scratch<M>& scratch) {
  const int dim = call.dim;
  static const std::vector<float> ones(TILE, 1.f);
  scratch.fit(int64_t(tile.blocks.size()) * BLOCK, dim);
  pack_rows<M>(q.at(tile.start), q.stride, tile.count, dim, scratch.query_rows.data());
  pack_rows<M>(grad.at(tile.start), grad.stride, tile.count, dim, scratch.grad_rows.data());
  pack_across<M>(q.at(tile.start), q.stride, tile.count, TILE, dim, scratch.query_across.data());
  pack_across<M>(grad.at(tile.start), grad.stride, tile.count, TILE, dim, scratch.grad_across.data());
  multiply_keys<M>(tile, scratch.query_rows.data(), keys.along.data(), dim, scratch.scores.data());
  multiply_keys<M>(tile, scratch.grad_rows.data(), values.along.data(), dim, scratch.grads.data());
  differentiate_softmax(call, tile, log_totals, scratch);
  weigh_keys<M>(tile, scratch.row_words.data(), keys.across.data(), dim, ones.data(), grad_q.at(tile.start),
                grad_q.stride);
  add_weighted_rows<M>(tile, scratch.grad_words.data(), scratch.query_across.data(), dim, grad_k);
  add_weighted_rows<M>(tile, scratch.weight_words.data(), scratch.grad_across.data(), dim, grad_v);
}

// ---- all heads ------------------------------------------------------------------------------------------------------

template <typename T>
Rows<T> rows_of(const Heads& heads, int64_t head) {
  return {(T*)heads.data + head * heads.head_stride, heads.token_stride};
}

template <class M, typename T>
std::vector<Packed<M>> pack_heads(const Heads& heads, const Shape& shape, bool is_along, bool is_across,
                                  int num_threads) {
  const int dim = shape.head_dim, num_blocks = (shape.num_tokens + BLOCK - 1) / BLOCK;
  const int64_t block_words = int64_t(BLOCK) * dim / M::STEP;
  std::vector<Packed<M>> packed(shape.num_kv_heads);
  for (auto& each : packed) {
    if (is_along) each.along.resize(num_blocks * block_words);
    if (is_across) each.across.resize(num_blocks * block_words);
  }
  const int64_t num_tasks = int64_t(shape.num_kv_heads) * num_blocks;
  parallel_for(num_tasks, Team(num_threads, num_tasks * BLOCK * dim, MANY_VALUES), [&](int64_t task) {
    const int64_t head = task / num_blocks, block = task % num_blocks, start = block * BLOCK;
    const Rows<const T> rows = rows_of<const T>(heads, head);
    const int count = int(shape.num_tokens - start < BLOCK ? shape.num_tokens - start : BLOCK);
    const int64_t at = block * block_words;
    if (is_along) pack_along<M>(rows.at(start), rows.stride, count, dim, packed[head].along.data() + at);
    if (is_across) pack_across<M>(rows.at(start), rows.stride, count, BLOCK, dim, packed[head].across.data() + at);
  });
  return packed;
}

struct Tensors {
  Heads q, k, v, out, grad_out, grad_q, grad_k, grad_v;
  float* log_totals;  // [head][token]
};

template <class M, typename T>
void attend(const Forest& forest, const Rule& rule, const Shape& shape, const Tensors& on, int num_threads) {
  const auto keys = pack_heads<M, T>(on.k, shape, true, false, num_threads);
  const auto values = pack_heads<M, T>(on.v, shape, false, true, num_threads);
  const Call call{forest, rule, shape.head_dim};
  const int num_tiles = int(forest.tiles.size()), group = shape.num_heads / shape.num_kv_heads;
  const int64_t num_tasks = int64_t(shape.num_heads) * num_tiles;
  parallel_tasks<Scratch<M>>(num_tasks, 1, Team(num_threads, num_tasks, 1), [&](int64_t task, Scratch<M>& scratch) {
    const int64_t head = task / num_tiles;
    attend_tile<M, T>(call, forest.tiles[task % num_tiles], rule.sink(head), rows_of<const T>(on.q, head),
                      keys[head / group], values[head / group], rows_of<T>(on.out, head),
                      on.log_totals + head * shape.num_tokens, scratch);
  });
}

// The gradient of a head of keys is the sum over its query heads.
template <typename T>
void sum_heads(const float* parts, int64_t part_size, const Shape& shape, const Heads& to, int num_threads) {
  const int group = shape.num_heads / shape.num_kv_heads, dim = shape.head_dim;
  const int64_t num_tasks = int64_t(shape.num_kv_heads) * shape.num_tokens;
  parallel_for(num_tasks, Team(num_threads, num_tasks * dim, MANY_VALUES), [&](int64_t task) {
    const int64_t head = task / shape.num_tokens, token = task % shape.num_tokens;
    T* out = rows_of<T>(to, head).at(token);
    for (int d = 0; d < dim; d += 16) {
      Vec sum = {};
      for (int g = 0; g < group; g++)
        sum += load_vec(parts + (head * group + g) * part_size + token * dim + d);
      save(out + d, sum);
    }
  });
}

template <class M, typename T>
void differentiate(const Forest& forest, const Rule& rule, const Shape& shape, const Tensors& on, int num_threads) {
  const auto keys = pack_heads<M, T>(on.k, shape, true, true, num_threads);
  const auto values = pack_heads<M, T>(on.v, shape, true, false, num_threads);
  const Call call{forest, rule, shape.head_dim};
  const int group = shape.num_heads / shape.num_kv_heads;
  const int64_t part_size = int64_t(forest.ends.size()) * shape.head_dim;
  // kept between calls: fresh pages would cost as much time as the products
  static thread_local std::vector<float> parts;
  if (parts.size() < size_t(2 * part_size * shape.num_heads)) parts.resize(2 * part_size * shape.num_heads);
  float *grad_k = parts.data(), *grad_v = grad_k + part_size * shape.num_heads;
  const Team team(num_threads, shape.num_heads, 1);
  parallel_tasks<Scratch<M>>(shape.num_heads, 1, team, [&](int64_t head, Scratch<M>& scratch) {
    float *own_k = grad_k + head * part_size, *own_v = grad_v + head * part_size;
    std::memset(own_k, 0, part_size * sizeof(float));
    std::memset(own_v, 0, part_size * sizeof(float));
    for (const Tile& tile : forest.tiles)
      differentiate_tile<M, T>(call, tile, rows_of<const T>(on.q, head), rows_of<const T>(on.grad_out, head),
                               keys[head / group], values[head / group], on.log_totals + head * shape.num_tokens,
                               rows_of<T>(on.grad_q, head), own_k, own_v, scratch);
  });
  sum_heads<T>(grad_k, part_size, shape, on.grad_k, num_threads);
  sum_heads<T>(grad_v, part_size, shape, on.grad_v, num_threads);
}

}  // namespace

extern "C" {

// ends, positions: per token. With is_backward the gradients are filled, else out and log_totals.
void ludus_tree(const int32_t* ends, const int32_t* positions, const Rule* rule, const Shape* shape, const Tensors* on,
                int32_t is_backward, int32_t num_threads) {
  const Forest forest = read_forest(ends, positions, shape->num_tokens, rule->window);
#ifdef LUDUS_QUICK_PAIRS
  typedef Pairs ForHalf;
#else
  typedef Plain ForHalf;
#endif
  if (shape->dtype == FP32 && is_backward) differentiate<Plain, float>(forest, *rule, *shape, *on, num_threads);
  else if (shape->dtype == FP32) attend<Plain, float>(forest, *rule, *shape, *on, num_threads);
  else if (is_backward) differentiate<ForHalf, uint16_t>(forest, *rule, *shape, *on, num_threads);
  else attend<ForHalf, uint16_t>(forest, *rule, *shape, *on, num_threads);
}

}  // extern "C"
