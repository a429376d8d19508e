// Which blocks of full attention are part of a prefix that prompts can resume from: what a server
// tells routers (KV events).
//
// A router that knows a server's blocks predicts how much of a prompt is cached: the blocks that
// the prompt begins with. But to resume at a position takes more than the full-attention pages
// before it: the sliding window must be cached too. So a block is told of as long as a prompt can
// resume at its end or later, on a prefix that holds the block:
//
//   full pages     |   0   |   1   |   2   |   3   |
//   sliding pages               |.|.|.|.|            the window before the position marked
//   resumable                           ^            so blocks 0 and 1 are told of, 2 and 3 are not
//
// This class follows the cache by its changes (kv/cache_changes.h), at the cost of some look-ups
// for each page. It is exact, but compares only the newest of many pages that differ within one
// block, as the cache does.
//
// Blocks are named by 64-bit hashes over all tokens up to their ends, with media, adapter and salt,
// as PrefixHashes makes them of seed 0: equal on all servers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kv/cache_changes.h"
#include "kv/kv_layout.h"

namespace lapidary {

// What is said of blocks.
struct BlockEvent {
  enum class Kind { kStored, kRemoved, kCleared };
  // Of a stored block, beside its tokens.
  struct Extra {
    std::vector<MediaDigest> media;  // that have tokens in it, by position
    std::string salt;                // of the first block of a salted prefix
    int32_t start = 0;               // position of its first token
  };
  Kind kind = Kind::kStored;
  // Of blocks; stored ones follow each other, of removed ones the last goes first.
  std::vector<uint64_t> hashes = {};
  std::optional<uint64_t> parent = {};  // the block before the first stored one
  std::vector<int32_t> tokens = {};     // of all stored blocks
  std::vector<Extra> extras = {};       // by stored block
};

class ResumableBlocks {
 public:
  // Both must outlive it.
  ResumableBlocks(const ModelPlan& plan, const KvLayout& layout) : plan_(plan), layout_(layout) {}
  ResumableBlocks(const ResumableBlocks&) = delete;
  ResumableBlocks& operator=(const ResumableBlocks&) = delete;

  // What these changes, which follow the last ones, mean: every block is stored before those that
  // follow it, and removed after them.
  std::vector<BlockEvent> Apply(const CacheChanges& changes);

  int num_blocks() const { return num_blocks_; }  // that count now

 private:
  // Where a block of the full group starts: the end of the block before it.
  struct Place {
    PrefixHash hash;
    int32_t block = 0;
    // The complete page whose block ends here, kept, and where that starts.
    PageIndex page = kScratchPage;
    Place* parent = nullptr;
    std::vector<PageIndex> full_pages;  // whose blocks start here
    std::vector<PageIndex> crossing;    // sliding pages that start before and end after it
    bool is_reachable = false;          // all pages before it are kept
    // Sliding pages whose last resumable position is in the block that starts here, or at its
    // start, and next places of which the count is not 0.
    int num_supports = 0;
    bool is_told = false;
    bool is_touched = false;
    PrefixHash unseeded;  // names the block that ends here, once that was stored
  };

  // A position where a sliding block starts, on some path.
  struct Node {
    PageIndex before = kScratchPage;  // the complete sliding page that ends here
    std::vector<PageIndex> starts;    // sliding pages that start here
    std::vector<PageIndex> going_on;  // full pages that hold the token after it
    std::vector<PageIndex> covering;  // full pages that hold the token before it

    bool is_empty() const {
      return before == kScratchPage && starts.empty() && going_on.empty() && covering.empty();
    }
  };

  struct Page {
    int group_idx = -1;  // -1: not kept
    int32_t block = 0;
    int32_t start = 0;
    PrefixHash before;           // up to `start`
    PrefixHash after;            // and up to the last token
    std::vector<uint64_t> lows;  // PrefixHash::low after each token
    std::vector<MediaDigest> media;
    // Of the full group.
    std::vector<int32_t> tokens;
    CacheChanges::Origin origin;
    Place* place = nullptr;             // where it starts
    Place* child = nullptr;             // where it ends, once it is complete
    std::vector<PageIndex> dependents;  // sliding pages that look through it; may be out of date
    // Of the sliding group.
    std::vector<Place*> crossed;
    int32_t run_first =
        0;  // kept pages lead to it from this block on; not told below what it needs
    Place* support = nullptr;
    bool is_run_dirty = false;
    bool is_support_dirty = false;

    int32_t end() const { return start + static_cast<int32_t>(lows.size()); }
  };

  struct HashOfHash {
    size_t operator()(const PrefixHash& hash) const { return hash.low; }
  };
  // How far a sliding page's tokens are covered by full pages.
  struct Coverage {
    int32_t end = 0;
    Place* place = nullptr;  // of the block that holds this position, or starts at it
    PageIndex page = kScratchPage;
  };
  // Of pages that part within one block, as the cache compares them.
  static constexpr int kMaxCompared = 32;

  bool GroupIsUsed(int group_idx) const { return !plan_.kv_groups[group_idx].layers.empty(); }
  int32_t full_tokens() const { return layout_.tokens_per_page[kFullGroup]; }
  int32_t sliding_tokens() const { return layout_.tokens_per_page[kSlidingGroup]; }
  int32_t FirstNeeded(int32_t length) const {
    return FirstBlockInReach(plan_, layout_, kSlidingGroup, length);
  }

  Page& PageOf(PageIndex index);
  Place* PlaceOf(const PrefixHash& hash, int32_t block);
  Node& NodeOf(uint64_t low) { return nodes_[low]; }
  Node* FindNode(uint64_t low);
  void EraseIfEmpty(uint64_t low);
  // PrefixHash::low at a position of the page.
  static uint64_t LowAt(const Page& page, int32_t position) {
    return position == page.start ? page.before.low : page.lows[position - page.start - 1];
  }

  void Reset();
  // Where the next change's part of the lists in CacheChanges begins.
  struct Reader {
    const int32_t* tokens;
    const MediaDigest* media;
    const CacheChanges::Origin* origin;
  };
  void Keep(const CacheChanges::Change& change, const Reader& reader);
  void KeepFull(PageIndex index, int32_t num_before);
  void KeepSliding(PageIndex index, int32_t num_before);
  void Drop(PageIndex index);
  void DropFull(PageIndex index);
  void DropSliding(PageIndex index);

  // Work that a change leaves.
  void MarkRun(PageIndex index);
  void MarkSupport(PageIndex index);
  // All sliding pages that a full page may cover.
  void MarkCovered(PageIndex full_page);
  void UpdateReachable();
  void UpdateRuns();
  void UpdateSupports();
  Coverage FindCoverage(PageIndex index);
  // The page among the newest of these full ones that agrees longest with the sliding page's tokens
  // from position `from` on.
  Coverage FindAgreeing(const Page& page, int32_t from, const std::vector<PageIndex>& full) const;
  Place* FindSupport(PageIndex index);
  void AddSupports(Place* place, int delta);

  // The block that ends at the place gets its name; the one before it has its own.
  void Name(Place& place) const;
  std::vector<BlockEvent> Tell(bool cleared);
  void EraseUnused();

  const ModelPlan& plan_;
  const KvLayout& layout_;
  std::vector<Page> pages_;  // by page
  std::unordered_map<PrefixHash, Place, HashOfHash> places_;
  std::unordered_map<uint64_t, Node> nodes_;
  std::vector<Place*> dirty_places_;
  std::vector<PageIndex> dirty_runs_;
  std::vector<PageIndex> dirty_supports_;
  std::vector<Place*> touched_;
  std::vector<PrefixHash> maybe_unused_;
  int num_blocks_ = 0;
};

}  // namespace lapidary
