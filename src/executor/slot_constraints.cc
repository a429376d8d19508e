#include "executor/slot_constraints.h"

#include <algorithm>

#include "base/check.h"

namespace lapidary {

void SlotConstraints::Reserve(size_t num_slots) {
  if (num_slots > matchers_.size()) matchers_.resize(num_slots);
}

void SlotConstraints::Bind(const SlotBinding& binding) {
  std::optional<grammar::Matcher>& matcher = matchers_[binding.slot];
  matcher.reset();
  if (binding.grammar == nullptr) return;
  if (binding.matcher != nullptr) {
    matcher.emplace(*binding.matcher);
    return;
  }
  matcher.emplace(binding.grammar);
  const size_t prompt_len = std::min<size_t>(binding.tokens.size(), binding.prompt_len);
  // They were allowed when they were sampled; what is not now fails when the next one is.
  for (const int32_t id : std::span(binding.tokens).subspan(prompt_len)) (void)matcher->Accept(id);
}

bool SlotConstraints::IsActive(int32_t slot) const {
  return matchers_[slot] && !matchers_[slot]->IsTerminated();
}

void SlotConstraints::MakeMasks(int32_t slot, std::span<const int32_t> drafts, RowMasks* masks) {
  CHECK(IsActive(slot)) << "slot " << slot;
  grammar::Matcher& matcher = *matchers_[slot];
  const int32_t num_rows = static_cast<int32_t>(drafts.size()) + 1;
  masks->num_words = matcher.num_words();
  masks->words.resize(static_cast<size_t>(num_rows) * masks->num_words);
  masks->only.assign(num_rows, -1);
  masks->error.clear();
  masks->num_made = 0;
  const int num_accepted = matcher.num_accepted();
  bool counts = true;
  const auto fail = [&](const Error& error) {
    masks->error = error.message;
    matcher.Rollback(matcher.num_accepted() - num_accepted);
  };
  for (int32_t row = 0; row < num_rows; ++row) {
    const std::span<uint32_t> mask =
        std::span(masks->words)
            .subspan(static_cast<size_t>(row) * masks->num_words, masks->num_words);
    if (!counts) {
      std::ranges::fill(mask, ~0u);
    } else {
      if (const Status filled = matcher.FillMask(mask); !filled.ok()) return fail(filled.error());
      const Result<std::optional<int32_t>> only = matcher.OnlyAllowedToken();
      if (!only.ok()) return fail(only.error());
      masks->only[row] = only->value_or(-1);
    }
    ++masks->num_made;
    if (!counts || row + 1 == num_rows) continue;
    const Result<bool> accepted = matcher.Accept(drafts[row]);
    if (!accepted.ok()) return fail(accepted.error());
    counts = *accepted && !matcher.IsTerminated();
  }
  matcher.Rollback(matcher.num_accepted() - num_accepted);
}

Status SlotConstraints::Advance(int32_t slot, int32_t token) {
  ASSIGN_OR_RETURN(const bool is_accepted, matchers_[slot]->Accept(token));
  CHECK(is_accepted) << "token " << token << " is in the mask";
  return {};
}

}  // namespace lapidary
