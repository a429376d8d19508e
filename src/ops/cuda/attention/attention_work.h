// Which block of an attention kernel does what: built on the host once per step and uploaded, so
// that one captured graph serves any mix of lengths. Plain data and integer arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lapidary::cuda {

// One sequence as attention sees it in one group: queries at consecutive positions; keys
// [0, num_cached) in pages, the rest among the step's own entries.
struct AttentionSequence {
  int32_t first_query = 0;  // row in the query buffer
  int32_t num_queries = 0;
  int32_t first_position = 0;  // of that query
  int32_t num_cached = 0;
  int32_t first_new = 0;  // row of the step's entries that holds position num_cached
  int32_t table_base =
      0;  // page of block b: page_ids[table_base + b]; block = tokens_per_page keys
};

// Keys are read in tiles of this many, at absolute positions; splits begin and end between tiles.
inline constexpr int kAttentionKeyTile = 32;
// With batch_invariant a row's sums are closed at every multiple of this position and combined in
// order, whether one item walks over the boundary or each piece is an item of its own.
inline constexpr int kAttentionCombineKeys = 512;
// Rows of one partial result; a tile of r rows takes ceil(r / 16) of them per split.
inline constexpr int kAttentionPartialRows = 16;

// A tile of query rows (some queries of one sequence, all heads of one KV head) against the keys
// [key_begin, key_end), which already respect the window's lower end and the upper end (causal, or
// as far ahead as its last query sees) of the tile as a whole; single rows are masked in the
// kernel. The partial results of split s begin at first_partial + s * ceil(rows / 16); the counters
// of the tile, as many, begin there, too. An item without queries only keeps the place of one.
struct AttentionItem {
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int32_t query_begin = 0;  // within the sequence
  int32_t num_queries = 0;
  int32_t key_begin = 0;
  int32_t key_end = 0;
  int32_t first_partial = -1;  // where the tile's partial results begin; -1: it has one item only
  int16_t split = 0;           // which of num_splits this one is
  int16_t num_splits = 1;
};

struct AttentionGeometry {
  int num_heads = 0;
  int num_kv_heads = 0;
  int window = 0;  // keys visible including the query's own; 0: all

  int heads_per_kv_head() const { return num_heads / num_kv_heads; }
};

struct AttentionWorkOptions {
  int num_blocks = 1;            // that run at once (AttentionBlocks): enough to fill them
  bool batch_invariant = false;  // splits of a fixed key length, whatever else is in the step
  int max_partials = 0;          // capacity of the buffer for split tiles
  int tile_rows = 64;            // (query, head) pairs of a tile at most: 16, 32, 64 or 128
  int min_split_keys = 64;       // pieces of split tiles are not planned shorter; even shares: half
  bool even_shares = false;      // tiles of few rows may be cut where a block's share ends
};

// Tiles of these rows have kernels: 16 and 32 for few rows, 64 for heads of any size, 128 for heads
// of 256 dims.
inline constexpr int kAttentionTileRows[] = {16, 32, 64, 128};
// The tile for steps whose sequences have at most `max_queries` each and `all_queries` together, on
// so many multiprocessors.
struct AttentionStepSize {
  int max_queries = 0;
  int64_t all_queries = 0;
  int num_sms = 1;
};
int ChooseTileRows(const AttentionGeometry& geometry, int head_dim, const AttentionStepSize& step,
                   bool batch_invariant);
// What goes with it; blocks and the room for partial results are the caller's to say.
AttentionWorkOptions WorkOfTile(int tile_rows, bool batch_invariant);

// Writes the items of one step to `items` (cleared first); block b has those at b, b + num_blocks,
// ... Long ones come first, and where they differ in length, every second round of num_blocks items
// is reversed so that blocks end up with equal sums; or every block has an even share of all keys
// (even_shares), where that is quicker.
// Capacity in max_partials is never exceeded: tiles that would need more are split less.
// The last query's position of a sequence is at least num_cached - 1; one without queries has no
// items. Where positions are not known yet, they are the most they can be and `num_uncertain` says
// by how much less they may really be (empty: none): items then cover the keys of every case, and
// ClipItem (prepare_step.h) leaves those of the true one.
// `keys_ahead`: AttentionCall's, by the sequences' first_query; of positions that are known.
void PlanAttentionWork(const AttentionGeometry& geometry,
                       std::span<const AttentionSequence> sequences,
                       const AttentionWorkOptions& options, std::vector<AttentionItem>& items,
                       std::span<const int32_t> num_uncertain = {},
                       std::span<const int32_t> keys_ahead = {});

}  // namespace lapidary::cuda
