#include "ops/cuda/attention/attention_work.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace lapidary::cuda {
namespace {

template <typename A, typename B>
auto DivideUp(A a, B b) {
  return (a + b - 1) / b;
}

// A computing warp of the kernel for few rows has as many.
constexpr int kRowsOfWarp = 8;
// So few tiles of that size that each may be cut for several blocks. As measured: a step gained or
// lost nothing with up to 24 of them on 132.
bool IsFew(int64_t num_tiles, int num_blocks) { return 5 * num_tiles <= num_blocks; }

// Queries of one sequence against all their keys, the same for every KV head.
struct Tile {
  int32_t sequence;
  int32_t query_begin;
  int32_t num_queries;
  int32_t key_begin;
  int32_t key_end;
  int32_t row_tiles;
  int32_t key_tiles;  // of kAttentionKeyTile, cut at absolute positions

  int first_key_tile() const { return key_begin / kAttentionKeyTile; }
};

// Costs in quarters of the time that one tile of keys takes to arrive. Up to 32 rows the keys'
// bytes count, beyond them the arithmetic does.
int CostPerKeyTile(const Tile& tile) {
  return tile.row_tiles <= 2 ? 4 : tile.row_tiles <= 4 ? 6 : 10;
}
constexpr int kCostPerItem = 6;
// To write the sums of a piece: of a row tile, in f32, as many bytes as 16 keys. Of few rows it
// does not show.
int CostToWrite(const Tile& tile) { return tile.row_tiles <= 2 ? 0 : 2 * tile.row_tiles; }
// The last block reads those of all pieces; of few rows, in two steps (kSplitsOfGroup in
// attention_few_rows_join.cuh).
int CostToMerge(const Tile& tile, int num_pieces, int tile_rows) {
  if (tile.row_tiles > 2) return 4 + num_pieces * CostToWrite(tile);
  if (tile_rows <= 32 && num_pieces > 16) {
    return 7 + (8 + DivideUp(num_pieces, 8)) * tile.row_tiles / 2;
  }
  return 4 + num_pieces * tile.row_tiles / 2;
}

// One of the pieces that a tile is split into, the same for every KV head.
struct Piece {
  int32_t tile;
  int32_t key_begin;
  int32_t key_end;
  int32_t split;
  int32_t num_splits;
  int32_t first_partial;  // of KV head 0
  int32_t cost;
};

class Planner {
 public:
  Planner(const AttentionGeometry& geometry, const AttentionWorkOptions& options)
      : geometry_(geometry), options_(options) {}

  void Plan(std::span<const AttentionSequence> sequences, std::span<const int32_t> num_uncertain,
            std::span<const int32_t> keys_ahead, std::vector<AttentionItem>& items) {
    items.clear();
    MakeTiles(sequences, num_uncertain, keys_ahead);
    if (tiles_.empty()) return;
    const int max_key_tiles = ChooseSplit();
    if (options_.even_shares && MakeEvenShares(EstimateCost(max_key_tiles))) {
      EmitShares(items);
      return;
    }
    num_partials_ = 0;
    for (int idx = 0; idx < tiles_.size(); ++idx) MakePieces(idx, max_key_tiles);
    SortPieces();
    EmitItems(items);
  }

 private:
  // Queries that share a tile: as many as fit. Where most blocks would have nothing to do, as few
  // as a warp has rows, since an item takes a block the longer the more rows it has; unless keys
  // are many, which each tile reads for itself.
  int QueriesOfTile(std::span<const AttentionSequence> sequences) const {
    const int heads = geometry_.heads_per_kv_head();
    const int most = options_.tile_rows / heads;
    CHECK_GE(most, 1) << "tile_rows is less than the heads of a KV head";
    if (!options_.even_shares || options_.tile_rows > 32) return most;
    constexpr int kMostKeys = 4096;
    const int few = std::max(1, kRowsOfWarp / heads);
    int64_t num_tiles = 0;
    for (const AttentionSequence& sequence : sequences) {
      num_tiles += DivideUp(sequence.num_queries, few);
      const int num_keys = sequence.first_position + sequence.num_queries;
      if (geometry_.window == 0 && num_keys > kMostKeys) return most;
    }
    return IsFew(num_tiles * geometry_.num_kv_heads, options_.num_blocks) ? few : most;
  }

  void MakeTiles(std::span<const AttentionSequence> sequences,
                 std::span<const int32_t> num_uncertain, std::span<const int32_t> keys_ahead) {
    const int heads = geometry_.heads_per_kv_head();
    const int queries_per_tile = QueriesOfTile(sequences);
    for (int idx = 0; idx < sequences.size(); ++idx) {
      const AttentionSequence& sequence = sequences[idx];
      const int uncertain = num_uncertain.empty() ? 0 : num_uncertain[idx];
      for (int begin = 0; begin < sequence.num_queries; begin += queries_per_tile) {
        const int num_queries = std::min(queries_per_tile, sequence.num_queries - begin);
        const int first_position = sequence.first_position + begin;
        // The last query sees at least as far as those before it.
        const int last_query = sequence.first_query + begin + num_queries - 1;
        const int key_end =
            first_position + num_queries + (keys_ahead.empty() ? 0 : keys_ahead[last_query]);
        const int key_begin = geometry_.window > 0
                                  ? std::max(0, first_position - uncertain - geometry_.window + 1)
                                  : 0;
        tiles_.push_back(
            {.sequence = idx,
             .query_begin = begin,
             .num_queries = num_queries,
             .key_begin = key_begin,
             .key_end = key_end,
             .row_tiles = DivideUp(num_queries * heads, kAttentionPartialRows),
             .key_tiles = DivideUp(key_end, kAttentionKeyTile) - key_begin / kAttentionKeyTile});
      }
    }
  }

  // Pieces of a tile that is cut into pieces of at most max_key_tiles.
  int NumPieces(const Tile& tile, int max_key_tiles) const {
    if (tile.key_tiles <= max_key_tiles) return 1;
    if (options_.batch_invariant) {
      return DivideUp(tile.key_end, kAttentionCombineKeys) - tile.key_begin / kAttentionCombineKeys;
    }
    return DivideUp(tile.key_tiles, max_key_tiles);
  }

  // Of few rows and short tiles: an SM takes half as many keys again where others take none.
  int64_t AloneCost(const Tile& tile, int64_t cost) const {
    const bool is_short = tile.row_tiles <= 2 && tile.key_tiles <= 18;
    return options_.even_shares && options_.tile_rows <= 32 && is_short ? DivideUp(cost * 2, 3)
                                                                        : cost;
  }

  // About how long the blocks are busy if no piece is longer than max_key_tiles; forever if there
  // is no room for so many partial results.
  int64_t EstimateCost(int max_key_tiles) const {
    int64_t total = 0;
    int64_t longest = 0;
    int64_t num_items = 0;
    int64_t merge = 0;
    int64_t num_partials = 0;
    for (const Tile& tile : tiles_) {
      const int num_pieces = NumPieces(tile, max_key_tiles);
      const int64_t whole = int64_t{tile.key_tiles} * CostPerKeyTile(tile);
      const int64_t piece = kCostPerItem + (num_pieces > 1 ? CostToWrite(tile) : 0);
      total += whole + num_pieces * piece;
      longest = std::max(longest, AloneCost(tile, DivideUp(whole, num_pieces)) + piece);
      num_items += num_pieces;
      if (num_pieces > 1) {
        num_partials += num_pieces * tile.row_tiles;
        merge = std::max<int64_t>(merge, CostToMerge(tile, num_pieces, options_.tile_rows));
      }
    }
    if (num_partials * geometry_.num_kv_heads > options_.max_partials) {
      return std::numeric_limits<int64_t>::max();
    }
    total *= geometry_.num_kv_heads;
    num_items *= geometry_.num_kv_heads;
    const int64_t average = DivideUp(total, options_.num_blocks);
    // With few rounds what counts is whole rounds of items, with many the average.
    const int64_t mean_item = DivideUp(total, num_items);
    const int64_t rounds = DivideUp(num_items, options_.num_blocks);
    return std::max({average, longest, rounds > 1 && rounds <= 8 ? rounds * mean_item : average}) +
           merge;
  }

  // The most key tiles that a piece should have.
  int ChooseSplit() const {
    int longest = 1;
    int most_rows = 0;
    int64_t total = 0;
    for (const Tile& tile : tiles_) {
      longest = std::max(longest, tile.key_tiles);
      most_rows = std::max(most_rows, tile.row_tiles);
      total += tile.key_tiles;
    }
    if (options_.max_partials == 0) return longest;
    if (options_.batch_invariant) {
      const int split = kAttentionCombineKeys / kAttentionKeyTile;
      return EstimateCost(split) < EstimateCost(longest) ? split : longest;
    }
    const int64_t num_items = static_cast<int64_t>(tiles_.size()) * geometry_.num_kv_heads;
    // Where a third of the blocks has a large tile, pieces of it cost more than the others save.
    const bool has_enough = most_rows > 2 && 3 * num_items >= options_.num_blocks;
    const int min_keys =
        has_enough ? std::max(1024, options_.min_split_keys) : options_.min_split_keys;
    const int shortest = std::max(1, min_keys / kAttentionKeyTile);
    if (num_items >= 8 * options_.num_blocks) {
      // Enough to do everywhere; only what is longer than a block's share is cut.
      const int64_t share = DivideUp(total * geometry_.num_kv_heads, options_.num_blocks);
      return static_cast<int>(std::min<int64_t>(std::max<int64_t>(share, shortest), longest));
    }
    int best = longest;
    int64_t best_cost = EstimateCost(longest);
    constexpr int kPieces[] = {2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128};
    for (const int num_pieces : kPieces) {
      const int candidate = DivideUp(longest, num_pieces);
      if (candidate < shortest) break;
      const int64_t cost = EstimateCost(candidate);
      if (cost < best_cost) {
        best = candidate;
        best_cost = cost;
      }
    }
    return best;
  }

  void MakePieces(int tile_idx, int max_key_tiles) {
    const Tile& tile = tiles_[tile_idx];
    int num_pieces = NumPieces(tile, max_key_tiles);
    // Partial results are what runs out: what does not fit is split less, or not at all.
    const int per_piece = tile.row_tiles * geometry_.num_kv_heads;
    const int affordable = (options_.max_partials - num_partials_) / per_piece;
    if (num_pieces > affordable) num_pieces = options_.batch_invariant ? 1 : affordable;
    if (num_pieces <= 1) {
      pieces_.push_back({.tile = tile_idx,
                         .key_begin = tile.key_begin,
                         .key_end = tile.key_end,
                         .split = 0,
                         .num_splits = 1,
                         .first_partial = -1,
                         .cost = tile.key_tiles * CostPerKeyTile(tile) + kCostPerItem});
      return;
    }
    for (int split = 0; split < num_pieces; ++split) {
      pieces_.push_back({.tile = tile_idx,
                         .key_begin = std::max(tile.key_begin, SplitBegin(tile, split, num_pieces)),
                         .key_end = std::min(tile.key_end, SplitBegin(tile, split + 1, num_pieces)),
                         .split = split,
                         .num_splits = num_pieces,
                         .first_partial = num_partials_,
                         .cost = 0});
      Piece& piece = pieces_.back();
      const int key_tiles =
          DivideUp(piece.key_end, kAttentionKeyTile) - piece.key_begin / kAttentionKeyTile;
      piece.cost = key_tiles * CostPerKeyTile(tile) + kCostPerItem;
    }
    num_partials_ += num_pieces * per_piece;
  }

  // Deals out all keys in one go: a block takes what comes next up to its share, so tiles are cut
  // only where one block's share ends and the next begins, and few sums are written. False if that
  // takes as long as `other_cost` or more, or there are rows, items or cuts too many for it; also
  // where a tile is cut for many blocks anyway.
  bool MakeEvenShares(int64_t other_cost) {
    const int64_t num_units = static_cast<int64_t>(tiles_.size()) * geometry_.num_kv_heads;
    if (4 * num_units <= options_.num_blocks || num_units >= 8 * options_.num_blocks) return false;
    if (options_.batch_invariant) return false;
    int64_t total = 0;
    for (const Tile& tile : tiles_) {
      if (tile.row_tiles > 2) return false;
      total += int64_t{tile.key_tiles} * CostPerKeyTile(tile);
    }
    // What is still to be dealt out: every tile is an item, and every block's end makes one more.
    remaining_cost_ =
        total * geometry_.num_kv_heads + (num_units + options_.num_blocks) * kCostPerItem;
    pieces_of_unit_.reserve(num_units);
    share_items_.reserve(num_units + options_.num_blocks);
    BeginShare();
    int64_t merge = 0;
    for (int unit = 0; unit < num_units; ++unit) {
      const Tile& tile = tiles_[unit / geometry_.num_kv_heads];
      const int num_pieces = DealOut(unit, tile);
      pieces_of_unit_.push_back(num_pieces);
      if (num_pieces == 1) continue;
      num_partials_ += num_pieces * tile.row_tiles;
      merge = std::max<int64_t>(merge, CostToMerge(tile, num_pieces, options_.tile_rows));
    }
    shares_.back().end = static_cast<int32_t>(share_items_.size());
    if (num_partials_ > options_.max_partials || most_used_ + merge >= other_cost) return false;
    // Blocks of more items come first. What others have less leaves gaps in the list.
    std::stable_sort(shares_.begin(), shares_.end(),
                     [](const Share& a, const Share& b) { return a.size() > b.size(); });
    const auto num_items = static_cast<int64_t>(share_items_.size());
    const int64_t num_places = int64_t{shares_.front().size()} * options_.num_blocks;
    return num_places <= num_items + num_items / 4 + options_.num_blocks;
  }

  void BeginShare() {
    const auto at = static_cast<int32_t>(share_items_.size());
    if (!shares_.empty()) shares_.back().end = at;
    const int64_t num_left = options_.num_blocks - static_cast<int64_t>(shares_.size());
    shares_.push_back({at, at});
    share_cost_ = DivideUp(remaining_cost_, num_left);
    used_cost_ = 0;
  }

  // One tile and KV head, to the current block and those behind it. Returns in how many pieces.
  int DealOut(int unit, const Tile& tile) {
    const int per_key_tile = CostPerKeyTile(tile);
    // There are few cuts, so pieces may be shorter than where all tiles are cut.
    const int shortest = std::max(1, options_.min_split_keys / 2 / kAttentionKeyTile);
    int num_pieces = 0;
    for (int begin = 0; begin < tile.key_tiles;) {
      const int left = tile.key_tiles - begin;
      auto count = static_cast<int>((share_cost_ - used_cost_ - kCostPerItem) / per_key_tile);
      // A key tile too many costs less than another piece.
      if (shares_.size() == options_.num_blocks || count + 1 >= left) {
        count = left;
      } else {
        count = std::min(count, left - shortest);
        if (count < shortest && used_cost_ > 0) {
          BeginShare();
          continue;
        }
        count = std::max(count, std::min(shortest, left));
      }
      share_items_.push_back({unit, begin, begin + count, num_pieces});
      const int cost = count * per_key_tile + kCostPerItem;
      used_cost_ += cost;
      remaining_cost_ -= cost;
      most_used_ = std::max(most_used_, used_cost_);
      begin += count;
      ++num_pieces;
    }
    return num_pieces;
  }

  void EmitShares(std::vector<AttentionItem>& items) const {
    std::vector<int32_t> first_partial(pieces_of_unit_.size(), -1);
    int next_partial = 0;
    for (int unit = 0; unit < pieces_of_unit_.size(); ++unit) {
      if (pieces_of_unit_[unit] == 1) continue;
      first_partial[unit] = next_partial;
      next_partial += pieces_of_unit_[unit] * tiles_[unit / geometry_.num_kv_heads].row_tiles;
    }
    const int last_round = shares_.front().size() - 1;
    const auto in_last_round = std::count_if(shares_.begin(), shares_.end(),
                                             [&](const Share& s) { return s.size() > last_round; });
    items.resize(int64_t{last_round} * options_.num_blocks + in_last_round);
    for (int block = 0; block < shares_.size(); ++block) {
      for (int round = 0; round < shares_[block].size(); ++round) {
        const ShareItem& share = share_items_[shares_[block].begin + round];
        const Tile& tile = tiles_[share.unit / geometry_.num_kv_heads];
        const auto key_at = [&](int key_tile) {
          return std::clamp((tile.first_key_tile() + key_tile) * kAttentionKeyTile, tile.key_begin,
                            tile.key_end);
        };
        items[int64_t{round} * options_.num_blocks + block] = {
            .sequence = tile.sequence,
            .kv_head = share.unit % geometry_.num_kv_heads,
            .query_begin = tile.query_begin,
            .num_queries = tile.num_queries,
            .key_begin = key_at(share.begin),
            .key_end = key_at(share.end),
            .first_partial = first_partial[share.unit],
            .split = static_cast<int16_t>(share.split),
            .num_splits = static_cast<int16_t>(pieces_of_unit_[share.unit])};
      }
    }
  }

  // The first key of a piece, a multiple of kAttentionKeyTile.
  int SplitBegin(const Tile& tile, int split, int num_pieces) const {
    if (options_.batch_invariant) {
      return (tile.key_begin / kAttentionCombineKeys + split) * kAttentionCombineKeys;
    }
    const int64_t key_tiles = int64_t{tile.key_tiles} * split / num_pieces;
    return (tile.first_key_tile() + static_cast<int>(key_tiles)) * kAttentionKeyTile;
  }

  // Costly ones first, to within a 1024th of the costliest; equals stay in order.
  void SortPieces() {
    int costliest = 0;
    for (const Piece& piece : pieces_) costliest = std::max(costliest, piece.cost);
    constexpr int kBuckets = 1024;
    int shift = 0;
    while (costliest >> shift >= kBuckets) ++shift;
    std::vector<int32_t> bucket_end(kBuckets + 1, 0);
    const auto bucket_of = [&](const Piece& piece) { return kBuckets - 1 - (piece.cost >> shift); };
    for (const Piece& piece : pieces_) ++bucket_end[bucket_of(piece) + 1];
    for (int bucket = 0; bucket < kBuckets; ++bucket) bucket_end[bucket + 1] += bucket_end[bucket];
    sorted_.resize(pieces_.size());
    for (int idx = 0; idx < pieces_.size(); ++idx) {
      sorted_[bucket_end[bucket_of(pieces_[idx])]++] = idx;
    }
  }

  void EmitItems(std::vector<AttentionItem>& items) const {
    items.resize(pieces_.size() * geometry_.num_kv_heads);
    AttentionItem* item = items.data();
    for (const int32_t piece_idx : sorted_) {
      const Piece& piece = pieces_[piece_idx];
      const Tile& tile = tiles_[piece.tile];
      for (int kv_head = 0; kv_head < geometry_.num_kv_heads; ++kv_head, ++item) {
        *item = {.sequence = tile.sequence,
                 .kv_head = kv_head,
                 .query_begin = tile.query_begin,
                 .num_queries = tile.num_queries,
                 .key_begin = piece.key_begin,
                 .key_end = piece.key_end,
                 .first_partial =
                     piece.num_splits == 1
                         ? -1
                         : piece.first_partial + kv_head * piece.num_splits * tile.row_tiles,
                 .split = static_cast<int16_t>(piece.split),
                 .num_splits = static_cast<int16_t>(piece.num_splits)};
      }
    }
    if (pieces_.empty() || pieces_[sorted_.front()].cost == pieces_[sorted_.back()].cost) return;
    const int64_t round = options_.num_blocks;
    for (int64_t begin = round; begin < items.size(); begin += 2 * round) {
      std::reverse(items.begin() + begin,
                   items.begin() + std::min<int64_t>(begin + round, items.size()));
    }
  }

  const AttentionGeometry& geometry_;
  const AttentionWorkOptions& options_;
  std::vector<Tile> tiles_;
  std::vector<Piece> pieces_;
  std::vector<int32_t> sorted_;
  int num_partials_ = 0;

  // Even shares: pieces of (tile, KV head) pairs in the order of the blocks, and which are whose.
  struct ShareItem {
    int32_t unit;   // tile * num_kv_heads + kv_head
    int32_t begin;  // key tile
    int32_t end;
    int32_t split;
  };
  struct Share {
    int32_t begin;
    int32_t end;
    int size() const { return end - begin; }
  };
  std::vector<ShareItem> share_items_;
  std::vector<Share> shares_;  // by block
  std::vector<int32_t> pieces_of_unit_;
  int64_t remaining_cost_ = 0;
  int64_t share_cost_ = 0;  // of the current block
  int64_t used_cost_ = 0;
  int64_t most_used_ = 0;
};

}  // namespace

int ChooseTileRows(const AttentionGeometry& geometry, int head_dim, const AttentionStepSize& step,
                   bool batch_invariant) {
  const int rows = step.max_queries * geometry.heads_per_kv_head();
  if (batch_invariant) {
    // Tiles of 16 rows have kernels with more and smaller blocks, which pay where sequences have
    // some KV heads to share among them, but not so many that every block is busy anyway.
    const int few_rows =
        rows <= 16 && geometry.num_kv_heads >= 2 && geometry.num_kv_heads <= 8 ? 16 : 32;
    return rows <= few_rows ? few_rows : 64;
  }
  // Few rows wait for keys, more of them are for wgmma, unless there are few in all.
  const bool is_few = IsFew(step.all_queries * geometry.num_heads / kRowsOfWarp, step.num_sms);
  if (head_dim > 256) return rows <= 16 ? 16 : rows <= 32 && is_few ? 32 : 64;
  if (rows <= 32 || (is_few && geometry.window > 0)) return 32;
  // Large tiles read the keys less often, but half of the multiprocessors or more must have one.
  constexpr int kLargeRows = 128;
  const int64_t all_rows = step.all_queries * geometry.num_heads;
  return 2 * all_rows <= int64_t{kLargeRows} * step.num_sms ? 64 : kLargeRows;
}

AttentionWorkOptions WorkOfTile(int tile_rows, bool batch_invariant) {
  AttentionWorkOptions work;
  work.tile_rows = tile_rows;
  work.batch_invariant = batch_invariant;
  work.min_split_keys = tile_rows >= 64 ? 256 : batch_invariant ? 64 : 128;
  work.even_shares = !batch_invariant;
  return work;
}

void PlanAttentionWork(const AttentionGeometry& geometry,
                       std::span<const AttentionSequence> sequences,
                       const AttentionWorkOptions& options, std::vector<AttentionItem>& items,
                       std::span<const int32_t> num_uncertain,
                       std::span<const int32_t> keys_ahead) {
  Planner(geometry, options).Plan(sequences, num_uncertain, keys_ahead, items);
}

}  // namespace lapidary::cuda
