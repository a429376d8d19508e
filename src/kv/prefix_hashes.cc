#include "kv/prefix_hashes.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace lapidary {
namespace {

// No vocabulary has them.
constexpr int32_t kMediaMark = -1;
constexpr int32_t kAdapterMark = -2;
constexpr int32_t kSaltMark = -3;

}  // namespace

Status CheckIdentity(const PrefixIdentity& identity, int64_t prompt_len) {
  int64_t last = -1;
  for (const MediaDigest& medium : identity.media) {
    if (medium.position <= last || medium.position >= prompt_len) {
      return MakeError("media must start at ascending positions of the {} prompt tokens, got {}",
                       prompt_len, medium.position);
    }
    last = medium.position;
  }
  return {};
}

void PrefixHasher::Add(const MediaDigest& medium) {
  Add(kMediaMark);
  AddWord(medium.low);
  AddWord(medium.high);
}

PrefixHashes::PrefixHashes(uint64_t seed, const PrefixIdentity& identity)
    : hasher_(seed), identity_(identity) {
  if (identity.adapter != 0) {
    hasher_.Add(kAdapterMark);
    hasher_.AddWord(identity.adapter);
  }
  if (!identity.salt.empty()) {
    hasher_.Add(kSaltMark);
    hasher_.AddWord(identity.salt.size());
    for (size_t begin = 0; begin < identity.salt.size(); begin += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, identity.salt.data() + begin,
                  std::min(sizeof(word), identity.salt.size() - begin));
      hasher_.AddWord(word);
    }
  }
  empty_ = hasher_.hash();
}

int32_t PrefixHashes::Extend(std::span<const int32_t> tokens) {
  const int32_t before = length();
  CHECK_GE(static_cast<int32_t>(tokens.size()), before);
  for (int32_t position = before; position < static_cast<int32_t>(tokens.size()); ++position) {
    const std::vector<MediaDigest>& media = identity_.media;
    if (num_media_hashed_ < media.size() && media[num_media_hashed_].position == position) {
      hasher_.Add(media[num_media_hashed_++]);
    }
    hasher_.Add(tokens[position]);
    hashes_.push_back(hasher_.hash());
  }
  return length() - before;
}

}  // namespace lapidary
