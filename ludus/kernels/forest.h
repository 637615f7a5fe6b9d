// Which keys the queries of a row see: the tree of a row of tokens in depth-first order, cut into tiles and blocks.
//
// Token i sees the keys j <= i with i < end[j], the index after the last descendant of j; with a window only those
// less than `window` positions back.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "parallel.h"
#include "vectors.h"

namespace {

constexpr int BLOCK = 16;  // keys of a block: lanes of a vector
constexpr int TILE = 32;   // queries of a tile: enough to reuse a block from cache, few pairs wasted on the diagonal

struct Tile {
  int start, count;
  std::vector<int> blocks;     // seen by at least one query, rising
  std::vector<bool> is_whole;  // by all of them
};

struct Forest {
  std::vector<int32_t> ends, positions;  // padded to whole blocks; what pads is seen by nobody
  std::vector<Tile> tiles;
};

// Sets a tile's blocks.
inline void look_back(const Forest& forest, int window, Tile& tile) {
  const int start = tile.start, end = start + tile.count;
  const auto range = std::minmax_element(forest.positions.begin() + start, forest.positions.begin() + end);
  const int lowest = *range.first, highest = *range.second;
  for (int block = 0; block * BLOCK < end; block++) {
    bool is_seen = false, is_whole = true;
    for (int j = block * BLOCK; j < (block + 1) * BLOCK; j++) {
      is_seen |= forest.ends[j] > start && (window == 0 || lowest - forest.positions[j] < window);
      is_whole &= j <= start && forest.ends[j] >= end && (window == 0 || highest - forest.positions[j] < window);
    }
    if (is_seen) tile.blocks.push_back(block), tile.is_whole.push_back(is_whole);
  }
}

inline Forest read_forest(const int32_t* ends, const int32_t* positions, int num_tokens, int window, int num_threads) {
  Forest forest;
  const int num_blocks = (num_tokens + BLOCK - 1) / BLOCK, num_tiles = (num_tokens + TILE - 1) / TILE;
  forest.ends.assign(num_blocks * BLOCK, 0);
  forest.positions.assign(num_blocks * BLOCK, 0);
  std::memcpy(forest.ends.data(), ends, num_tokens * sizeof(int32_t));
  std::memcpy(forest.positions.data(), positions, num_tokens * sizeof(int32_t));
  for (int start = 0; start < num_tokens; start += TILE)
    forest.tiles.push_back({start, std::min(num_tokens - start, TILE), {}, {}});
  // every tile looks at all that lies before it
  const Team team(num_threads, int64_t(num_tokens) * num_tiles / 2, MANY_VALUES);
  parallel_tasks<char>(num_tiles, 1, team, [&](int64_t tile, char&) { look_back(forest, window, forest.tiles[tile]); });
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

}  // namespace
