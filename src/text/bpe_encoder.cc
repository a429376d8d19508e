#include "text/bpe_encoder.h"

#include <algorithm>
#include <bit>

#include "base/huge_pages.h"
#include "text/merge_queue.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

constexpr uint32_t kDead = 0xFFFFFFFE;  // no rank: files have fewer merges
constexpr uint32_t kSpaceMark = 0x2581;
constexpr uint32_t kMalformed = 0x110000;  // above every code point: joins nothing

// Positions are 32 bits wide; a single word of a gigabyte is cut there.
constexpr size_t kMaxWordBytes = size_t{1} << 30;
// Scanning beats a queue up to about this many symbols, a heap beats buckets up to a few
// thousand.
constexpr size_t kMaxScannedSymbols = 24;
constexpr size_t kMaxHeapSymbols = 4096;

constexpr size_t kMinCachedTextBytes = 512;
constexpr size_t kMaxCachedWordBytes = 64;
constexpr size_t kMaxCacheSlots = 16384;

struct NormalChar {
  uint32_t code_point;
  uint32_t num_bytes;
};

// The next code point with U+2581 read as a space: they mean the same after the normalizer, and a
// space has the faster tables.
NormalChar ReadNormal(std::string_view text, size_t pos) {
  if (static_cast<uint8_t>(text[pos]) < 128) return {static_cast<uint8_t>(text[pos]), 1};
  const Utf8Char c = ReadUtf8(text.substr(pos));
  if (c.status != Utf8Status::kComplete) return {kMalformed, 1};
  return {c.code_point == kSpaceMark ? ' ' : c.code_point, c.num_bytes};
}

uint64_t HashStep(uint64_t hash, uint32_t code_point) {
  return (std::rotl(hash, 5) ^ code_point) * 0x9E3779B97F4A7C15u;
}

}  // namespace

BpeEncoder::BpeEncoder(const Bpe& bpe, std::string_view text, std::vector<int32_t>* ids)
    : bpe_(bpe), text_(text), ids_(*ids) {
  if (text.size() >= kMinCachedTextBytes) {
    cache_.resize(std::min(std::bit_floor(text.size() / 8), kMaxCacheSlots));
  }
}

void BpeEncoder::Run() {
  size_t begin = 0;
  while (begin < text_.size()) {
    NormalChar last = ReadNormal(text_, begin);
    uint64_t hash = HashStep(0, last.code_point);
    size_t end = begin + last.num_bytes;
    while (end < text_.size() && end - begin < kMaxWordBytes) {
      const NormalChar next = ReadNormal(text_, end);
      if (!bpe_.Joins(last.code_point, next.code_point) && !bpe_.merges_bytes_) break;
      hash = HashStep(hash, next.code_point);
      end += next.num_bytes;
      last = next;
    }
    EncodeCached(begin, end, hash);
    begin = end;
  }
}

void BpeEncoder::EncodeCached(size_t begin, size_t end, uint64_t hash) {
  const std::string_view word = text_.substr(begin, end - begin);
  // A lone ASCII character, often punctuation or a digit, needs neither cache nor merges.
  if (word.size() == 1 || cache_.empty() || word.size() > kMaxCachedWordBytes) {
    return EncodeWord(word);
  }
  CachedWord& cached = cache_[(hash >> 40) & (cache_.size() - 1)];
  if (cached.num_bytes == word.size() &&
      text_.substr(cached.text_begin, cached.num_bytes) == word) {
    const size_t ids_begin = ids_.size();
    ids_.resize(ids_begin + cached.num_ids);
    std::copy_n(ids_.begin() + cached.ids_begin, cached.num_ids, ids_.begin() + ids_begin);
    return;
  }
  const size_t ids_begin = ids_.size();
  EncodeWord(word);
  cached = {begin, ids_begin, static_cast<uint32_t>(word.size()),
            static_cast<uint32_t>(ids_.size() - ids_begin)};
}

void BpeEncoder::EncodeWord(std::string_view word) {
  SplitIntoSymbols(word);
  if (symbols_.size() <= kMaxScannedSymbols) {
    MergeShort();
  } else if (symbols_.size() <= kMaxHeapSymbols) {
    MergeLong<HeapMergeQueue>();
  } else {
    MergeLong<BucketMergeQueue>();
  }
}

void BpeEncoder::SplitIntoSymbols(std::string_view word) {
  symbols_.clear();
  symbols_.reserve(word.size());
  // A huge word is merged in rank order, all over the array: small pages would miss the TLB each
  // time.
  AdviseHugePages(symbols_.data(), symbols_.capacity() * sizeof(Symbol));
  for (size_t pos = 0; pos < word.size();) {
    const NormalChar c = ReadNormal(word, pos);
    const int32_t id = c.code_point == kMalformed ? Bpe::kNoId : bpe_.CodePointId(c.code_point);
    if (id != Bpe::kNoId) {
      symbols_.push_back({id, Bpe::kNoRank});
    } else if (c.code_point == ' ') {
      // Normalized first, so the bytes are those of U+2581 even where the text has a space.
      for (const uint8_t byte : {0xE2, 0x96, 0x81}) {
        symbols_.push_back({bpe_.byte_ids_[byte], Bpe::kNoRank});
      }
    } else {
      for (const char byte : word.substr(pos, c.num_bytes)) {
        symbols_.push_back({bpe_.byte_ids_[static_cast<uint8_t>(byte)], Bpe::kNoRank});
      }
    }
    pos += c.num_bytes;
  }
}

// Rescans for the best pair after each merge and closes the gap it leaves: quadratic, and fastest
// for the few symbols of an ordinary word.
void BpeEncoder::MergeShort() {
  size_t count = symbols_.size();
  for (size_t idx = 0; idx + 1 < count; ++idx) {
    symbols_[idx].rank = bpe_.Rank(symbols_[idx].id, symbols_[idx + 1].id);
  }
  while (count > 1) {
    size_t best = 0;
    for (size_t idx = 1; idx + 1 < count; ++idx) {
      if (symbols_[idx].rank < symbols_[best].rank) best = idx;
    }
    const uint32_t rank = symbols_[best].rank;
    if (rank == Bpe::kNoRank) break;
    symbols_[best].id = bpe_.merged_ids_[rank];
    std::copy(symbols_.begin() + best + 2, symbols_.begin() + count, symbols_.begin() + best + 1);
    --count;
    if (best + 1 < count) {
      symbols_[best].rank = bpe_.Rank(symbols_[best].id, symbols_[best + 1].id);
    }
    if (best > 0) symbols_[best - 1].rank = bpe_.Rank(symbols_[best - 1].id, symbols_[best].id);
  }
  for (size_t idx = 0; idx < count; ++idx) ids_.push_back(symbols_[idx].id);
}

uint32_t BpeEncoder::Next(uint32_t pos) const {
  if (pos + 1 >= symbols_.size() || symbols_[pos + 1].rank != kDead) return pos + 1;
  return pos + symbols_[pos + 1].id;
}

uint32_t BpeEncoder::Prev(uint32_t pos) const {
  return symbols_[pos - 1].rank != kDead ? pos - 1 : pos - symbols_[pos - 1].id;
}

template <typename Queue>
void BpeEncoder::MergeLong() {
  Queue queue;
  const auto count = static_cast<uint32_t>(symbols_.size());
  // Ranks the pair of `pos` and its neighbour `next`.
  const auto rank_pair = [&](uint32_t pos, uint32_t next) {
    Symbol& left = symbols_[pos];
    left.rank = next == count ? Bpe::kNoRank : bpe_.Rank(left.id, symbols_[next].id);
    if (left.rank != Bpe::kNoRank) queue.Push({left.rank, pos});
  };
  for (uint32_t pos = 0; pos < count; ++pos) rank_pair(pos, pos + 1);

  const auto prefetch = [&](uint32_t pos) { __builtin_prefetch(&symbols_[pos]); };
  MergeCandidate candidate;
  uint32_t num_left = count;
  while (queue.Pop(&candidate, prefetch)) {
    const uint32_t pos = candidate.pos;
    // Stale when either side has changed since. A rank cannot come back at the same position: a
    // pair there only ever gets longer, and a rank stands for one text.
    if (symbols_[pos].rank != candidate.rank) continue;
    const uint32_t right = Next(pos);
    const uint32_t end = Next(right);
    --num_left;
    symbols_[pos].id = bpe_.merged_ids_[candidate.rank];
    symbols_[right].rank = kDead;
    symbols_[pos + 1] = symbols_[end - 1] = {static_cast<int32_t>(end - pos), kDead};
    rank_pair(pos, end);
    if (pos > 0) rank_pair(Prev(pos), pos);
  }
  ids_.reserve(ids_.size() + num_left);
  for (uint32_t pos = 0; pos < count; pos = Next(pos)) ids_.push_back(symbols_[pos].id);
}

}  // namespace lapidary
