#include "engine/sequence.h"

#include "grammar/matcher.h"

namespace lapidary {

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

Sequence::Sequence(SequenceId id_, SequenceSpec spec_, SequencePages pages_, uint64_t hash_seed)
    : id(id_),
      spec(std::move(spec_)),
      tokens(spec.prompt),
      made_mask(spec.matcher),
      pages(std::move(pages_)),
      prefix_hashes(hash_seed, spec.identity) {
  tokens.insert(tokens.end(), spec.generated.begin(), spec.generated.end());
}

Sequence::~Sequence() = default;

}  // namespace lapidary
