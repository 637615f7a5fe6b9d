// Attention over a forest of tokens in depth-first order, forward and backward, for training.
//
// Plain C interface, no torch headers. The results of a token are computed in one order of operations, whatever the
// number of threads.
//
// Work is cut into tiles of TILE queries of one head, and a tile visits only the blocks of BLOCK keys that one of its
// queries can see (forest.h).
//
// Backwards a tile has two steps:
//   1  scores, weights and their gradients, and the gradients of its queries
//   2  its share in the gradients of the keys and values that it sees, which tiles have one after the other
// Where heads keep all threads busy, each is one thread's. Else threads share the tiles of a batch in step 1, and in
// step 2 the blocks of keys, each with all tiles of the batch. Both give the same bits, however large a batch is.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "forest.h"
#include "packing.h"
#include "parallel.h"
#include "scores.h"
#include "words.h"

namespace {

struct Shape {
  int32_t num_heads, num_kv_heads, num_tokens, head_dim, dtype;
};

// Element (head, token, 0); the numbers of a token lie side by side.
struct Heads {
  void* data;
  int64_t head_stride, token_stride;
};

// ---- one tile -------------------------------------------------------------------------------------------------------

template <typename T>
void grow(std::vector<T>& values, size_t size) {
  if (values.size() < size) values.resize(size);
}

template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  T* at(int64_t token) const { return data + token * stride; }
};

// Of one worker.
template <class M>
struct Scratch {
  typedef typename M::Word Word;
  std::vector<float> scores, grads, slopes;  // [TILE][columns]: one column for each key of the tile's blocks
  std::vector<Word> row_words, query_rows, grad_rows, words;

  void fit(int64_t num_columns, int dim, bool is_backward, bool is_capped) {
    const size_t size = size_t(TILE) * num_columns;
    grow(scores, size), grow(row_words, size), grow(query_rows, size_t(TILE) * dim);
    if (is_backward) grow(grads, size), grow(grad_rows, size_t(TILE) * dim);
    if (is_backward && is_capped) grow(slopes, size);
  }
};

// A tile of one query head, and what the gradients of keys and values need of it.
template <class M>
struct Part {
  typedef typename M::Word Word;
  const Tile* tile;
  int head;
  Word *weight_words, *grad_words;    // [row / STEP][column]
  Word *query_across, *grad_across;  // [row / STEP][D]

  int64_t num_words(int dim) const {
    return 2 * int64_t(TILE / M::STEP) * (int64_t(tile->blocks.size()) * BLOCK + dim);
  }
  void place(Word* at, int dim) {
    const int64_t wide = int64_t(TILE / M::STEP) * int64_t(tile->blocks.size()) * BLOCK;
    weight_words = at, grad_words = at + wide;
    query_across = at + 2 * wide, grad_across = query_across + int64_t(TILE / M::STEP) * dim;
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

// totals[key][d] += sum over the tile's rows of weights[row][key] * number d of the row, for blocks [first, last) of
// those that the tile sees
template <class M>
void add_weighted_rows(const Tile& tile, int64_t first, int64_t last, const typename M::Word* weights,
                       const typename M::Word* across, int dim, float* totals) {
  const int64_t num_columns = int64_t(tile.blocks.size()) * BLOCK;
  for (int64_t i = first; i < last; i++)
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
void attend_tile(const Call& call, const Tile& tile, float sink, Rows<const T> q, const Packed<M>& keys,
                 const Packed<M>& values, Rows<T> out, float* log_totals, Scratch<M>& scratch) {
  const int num_blocks = int(tile.blocks.size());
  const int64_t num_columns = int64_t(num_blocks) * BLOCK;
  scratch.fit(num_columns, call.dim, false, false);
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
void differentiate_softmax(const Call& call, const Part<M>& part, const float* log_totals, Scratch<M>& scratch) {
  const Tile& tile = *part.tile;
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
      M::put_rows(part.weight_words, num_columns, row, column, weight[0], weight[1]);
      M::put_rows(part.grad_words, num_columns, row, column, grad[0], grad[1]);
    }
  }
}

// The gradients of a tile's queries, and what those of keys and values need of it.
template <class M, typename T>
void differentiate_tile(const Call& call, const Part<M>& part, Rows<const T> q, Rows<const T> grad,
                        const Packed<M>& keys, const Packed<M>& values, const float* log_totals, Rows<T> grad_q,
                        Scratch<M>& scratch) {
  const Tile& tile = *part.tile;
  const int dim = call.dim;
  static const std::vector<float> ones(TILE, 1.f);
  scratch.fit(int64_t(tile.blocks.size()) * BLOCK, dim, true, call.rule.softcap > 0.f);
  pack_rows<M>(q.at(tile.start), q.stride, tile.count, dim, scratch.query_rows.data());
  pack_rows<M>(grad.at(tile.start), grad.stride, tile.count, dim, scratch.grad_rows.data());
  pack_across<M>(q.at(tile.start), q.stride, tile.count, TILE, dim, part.query_across);
  pack_across<M>(grad.at(tile.start), grad.stride, tile.count, TILE, dim, part.grad_across);
  multiply_keys<M>(tile, scratch.query_rows.data(), keys.along.data(), dim, scratch.scores.data());
  multiply_keys<M>(tile, scratch.grad_rows.data(), values.along.data(), dim, scratch.grads.data());
  differentiate_softmax(call, part, log_totals, scratch);
  weigh_keys<M>(tile, scratch.row_words.data(), keys.across.data(), dim, ones.data(), grad_q.at(tile.start),
                grad_q.stride);
}

// The tile's share in the gradients of the keys and values of blocks [begin, end); grad_k, grad_v: fp32, [token][dim].
template <class M>
void add_part(const Part<M>& part, int begin, int end, int dim, float* grad_k, float* grad_v) {
  const std::vector<int>& blocks = part.tile->blocks;
  const int64_t first = std::lower_bound(blocks.begin(), blocks.end(), begin) - blocks.begin();
  const int64_t last = std::lower_bound(blocks.begin() + first, blocks.end(), end) - blocks.begin();
  add_weighted_rows<M>(*part.tile, first, last, part.grad_words, part.query_across, dim, grad_k);
  add_weighted_rows<M>(*part.tile, first, last, part.weight_words, part.grad_across, dim, grad_v);
}

// ---- all heads ------------------------------------------------------------------------------------------------------

template <typename T>
Rows<T> rows_of(const Heads& heads, int64_t head) {
  return {(T*)heads.data + head * heads.head_stride, heads.token_stride};
}

// Some of the heads of keys.
struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

template <class M, typename T>
std::vector<Packed<M>> pack_heads(const Heads& heads, const Shape& shape, Range range, bool is_along, bool is_across,
                                  int num_threads) {
  const int dim = shape.head_dim, num_blocks = (shape.num_tokens + BLOCK - 1) / BLOCK;
  const int64_t block_words = int64_t(BLOCK) * dim / M::STEP;
  std::vector<Packed<M>> packed(range.size());
  for (auto& each : packed) {
    if (is_along) each.along.resize(num_blocks * block_words);
    if (is_across) each.across.resize(num_blocks * block_words);
  }
  const int64_t num_tasks = range.size() * num_blocks;
  parallel_for(num_tasks, Team(num_threads, num_tasks * BLOCK * dim, MANY_VALUES), [&](int64_t task) {
    const int64_t head = task / num_blocks, block = task % num_blocks, start = block * BLOCK;
    const Rows<const T> rows = rows_of<const T>(heads, range.begin + head);
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
  const Range all{0, shape.num_kv_heads};
  const auto keys = pack_heads<M, T>(on.k, shape, all, true, false, num_threads);
  const auto values = pack_heads<M, T>(on.v, shape, all, false, true, num_threads);
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

// The gradient of a head of keys is the sum over its query heads; parts: [head][token][dim].
template <typename T>
void sum_heads(const float* parts, int64_t head_size, const Shape& shape, Range range, const Heads& to,
               int num_threads) {
  const int group = shape.num_heads / shape.num_kv_heads, dim = shape.head_dim;
  const int64_t num_tasks = range.size() * shape.num_tokens;
  parallel_for(num_tasks, Team(num_threads, num_tasks * dim, MANY_VALUES), [&](int64_t task) {
    const int64_t head = task / shape.num_tokens, token = task % shape.num_tokens;
    T* out = rows_of<T>(to, range.begin + head).at(token);
    for (int d = 0; d < dim; d += 16) {
      Vec sum = {};
      for (int g = 0; g < group; g++) sum += load_vec(parts + (head * group + g) * head_size + token * dim + d);
      save(out + d, sum);
    }
  });
}

// Sums of gradients that are made at once, unless those of one key head alone are more; and what is kept of them and
// of all else between the calls of a thread, for fresh pages would cost as much time as the products. After a long
// row, whose products take far longer, all is given back.
constexpr int64_t MOST_BYTES = 256 << 20, KEPT_BYTES = 64 << 20;
// A batch is as many tiles as keep all threads busy, and more as long as they do not take too much memory.
constexpr int64_t BATCH_BYTES = 32 << 20, FEWEST_TILES = 2, MOST_TILES = 16;
constexpr int RUN = 4;  // key blocks of a task: few enough to share, enough to find their place in a tile once

template <class M>
struct Kept {
  std::vector<float> totals;
  std::vector<typename M::Word> words;
  std::vector<Scratch<M>> scratches;

  int64_t num_bytes() const {
    int64_t num = int64_t(totals.size() + words.size());
    for (const auto& each : scratches)
      num += int64_t(each.scores.size() + each.grads.size() + each.slopes.size() + each.row_words.size() +
                     each.words.size());
    return 4 * num;
  }
};

// The backward pass of the key heads of a range and their query heads.
template <class M, typename T>
struct Backward {
  const Call& call;
  const Shape& shape;
  const Tensors& on;
  Range range;
  Kept<M>& kept;
  int num_threads;
  const int group = shape.num_heads / shape.num_kv_heads;
  const int64_t num_heads = range.size() * group, first = range.begin * group;
  const int64_t num_blocks = int64_t(call.forest.ends.size()) / BLOCK, head_size = num_blocks * BLOCK * call.dim;
  const std::vector<Packed<M>> keys = pack_heads<M, T>(on.k, shape, range, true, true, num_threads);
  const std::vector<Packed<M>> values = pack_heads<M, T>(on.v, shape, range, true, false, num_threads);

  float* grad_k(int64_t head) const { return kept.totals.data() + (head - first) * head_size; }
  float* grad_v(int64_t head) const { return grad_k(head) + num_heads * head_size; }

  void differentiate(const Part<M>& part, Scratch<M>& scratch) const {
    const int64_t head = part.head, own = head / group - range.begin;
    differentiate_tile<M, T>(call, part, rows_of<const T>(on.q, head), rows_of<const T>(on.grad_out, head), keys[own],
                             values[own], on.log_totals + head * shape.num_tokens, rows_of<T>(on.grad_q, head),
                             scratch);
  }

  void add(const Part<M>& part, int64_t begin, int64_t end) const {
    add_part(part, int(begin), int(end), call.dim, grad_k(part.head), grad_v(part.head));
  }

  // Each head by one thread.
  void by_heads() const {
    const Team team(num_threads, num_heads, 1);
    parallel_tasks(num_heads, 1, team, kept.scratches, [&](int64_t head, Scratch<M>& scratch) {
      for (const Tile& tile : call.forest.tiles) {
        Part<M> part{&tile, int(first + head)};
        grow(scratch.words, size_t(part.num_words(call.dim)));
        part.place(scratch.words.data(), call.dim);
        differentiate(part, scratch);
        add(part, 0, num_blocks);
      }
    });
  }

  // All threads together, a batch of tiles after the other.
  void by_batches() const {
    const int64_t num_tiles = int64_t(call.forest.tiles.size()), num_parts = num_heads * num_tiles;
    const int64_t num_runs = (num_blocks + RUN - 1) / RUN;
    for (int64_t next = 0; next < num_parts;) {
      std::vector<Part<M>> parts;
      std::vector<int64_t> starts;
      int64_t num_words = 0;
      const auto is_room = [&] {
        const int64_t count = int64_t(parts.size());
        return count < FEWEST_TILES * num_threads ||
               (count < MOST_TILES * num_threads && 4 * num_words < BATCH_BYTES);
      };
      for (; next < num_parts && is_room(); next++) {
        parts.push_back({&call.forest.tiles[next % num_tiles], int(first + next / num_tiles)});
        starts.push_back(num_words);
        num_words += parts.back().num_words(call.dim);
      }
      grow(kept.words, size_t(num_words));
      const int64_t count = int64_t(parts.size());
      for (int64_t i = 0; i < count; i++) parts[i].place(kept.words.data() + starts[i], call.dim);
      parallel_tasks(count, 1, Team(num_threads, count, 1), kept.scratches,
                     [&](int64_t i, Scratch<M>& scratch) { differentiate(parts[i], scratch); });
      const int64_t first_head = parts.front().head, num_tasks = (parts.back().head + 1 - first_head) * num_runs;
      parallel_tasks<char>(num_tasks, 1, Team(num_threads, num_tasks, 1), [&](int64_t task, char&) {
        const int64_t head = first_head + task / num_runs, block = task % num_runs * RUN;
        for (const Part<M>& part : parts)
          if (part.head == head) add(part, block, block + RUN);
      });
    }
  }
};

template <class M, typename T>
void differentiate(const Forest& forest, const Rule& rule, const Shape& shape, const Tensors& on, int num_threads) {
  static thread_local Kept<M> of_thread;
  Kept<M>& kept = of_thread;  // by that name each worker would find its own
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const int64_t size = 2 * group * int64_t(forest.ends.size()) * shape.head_dim;  // sums of one key head's group
  const int64_t at_once = std::max<int64_t>(1, MOST_BYTES / (int64_t(sizeof(float)) * size + 1));
  const Call call{forest, rule, shape.head_dim};
  for (int64_t begin = 0; begin < shape.num_kv_heads; begin += at_once) {
    const Range range{begin, std::min<int64_t>(begin + at_once, shape.num_kv_heads)};
    grow(kept.totals, size_t(range.size() * size));
    parallel_for(range.size() * size / 16, Team(num_threads, range.size() * size, MANY_VALUES),
                 [&](int64_t line) { store_vec(kept.totals.data() + line * 16, Vec{}); });
    const Backward<M, T> backward{call, shape, on, range, kept, num_threads};
    const int64_t num_heads = backward.num_heads, num_rounds = (num_heads + num_threads - 1) / num_threads;
    // a fifth of the threads' time may be lost to heads that do not come out even: batches cost about as much
    if (5 * num_heads >= 4 * num_rounds * num_threads) backward.by_heads();
    else backward.by_batches();
    sum_heads<T>(backward.grad_k(backward.first), backward.head_size, shape, range, on.grad_k, num_threads);
    sum_heads<T>(backward.grad_v(backward.first), backward.head_size, shape, range, on.grad_v, num_threads);
  }
  if (kept.num_bytes() > KEPT_BYTES) kept = Kept<M>();
}

}  // namespace

extern "C" {

// ends, positions: per token. With is_backward the gradients are filled, else out and log_totals.
void ludus_tree(const int32_t* ends, const int32_t* positions, const Rule* rule, const Shape* shape, const Tensors* on,
                int32_t is_backward, int32_t num_threads) {
  const Forest forest = read_forest(ends, positions, shape->num_tokens, rule->window, num_threads);
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
