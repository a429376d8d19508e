#include "executor/slot_constraints.h"

#include <algorithm>

#include "base/check.h"

namespace lapidary {

void SlotConstraints::Reserve(size_t num_slots) {
  if (num_slots > slots_.size()) slots_.resize(num_slots);
}

void SlotConstraints::Bind(const SlotBinding& binding) {
  Slot& slot = slots_[binding.slot];
  slot = {};
  if (binding.grammar == nullptr) return;
  if (binding.matcher != nullptr) {
    slot.matcher.emplace(*binding.matcher);
    return;
  }
  slot.matcher.emplace(binding.grammar);
  const size_t prompt_len = std::min<size_t>(binding.tokens.size(), binding.prompt_len);
  slot.unread.assign(binding.tokens.begin() + static_cast<ptrdiff_t>(prompt_len),
                     binding.tokens.end());
}

bool SlotConstraints::IsActive(int32_t slot) const {
  const Slot& asked = slots_[slot];
  return asked.matcher && (!asked.unread.empty() || !asked.matcher->IsTerminated());
}

Status SlotConstraints::ReadTokens(Slot& slot, grammar::Work& work) {
  while (!slot.unread.empty()) {
    // It was allowed when it was sampled; what is not now fails when the next one is.
    const Result<bool> is_accepted = slot.matcher->Accept(slot.unread.front(), &work);
    if (!is_accepted.ok()) return is_accepted.error();
    slot.unread.pop_front();
  }
  return {};
}

void SlotConstraints::MakeMasks(int32_t slot, std::span<const int32_t> drafts, grammar::Work& work,
                                RowMasks* masks) {
  CHECK(IsActive(slot)) << "slot " << slot;
  grammar::Matcher& matcher = *slots_[slot].matcher;
  const int32_t num_rows = static_cast<int32_t>(drafts.size()) + 1;
  masks->num_words = matcher.num_words();
  masks->words.resize(static_cast<size_t>(num_rows) * masks->num_words);
  masks->only.assign(num_rows, -1);
  masks->error = {};
  masks->num_made = 0;
  if (const Status read = ReadTokens(slots_[slot], work); !read.ok()) {
    masks->error = read.error();
    return;
  }
  const int num_accepted = matcher.num_accepted();
  bool counts = !matcher.IsTerminated();
  const auto fail = [&](const Error& error) {
    masks->error = error;
    matcher.Rollback(matcher.num_accepted() - num_accepted);
  };
  for (int32_t row = 0; row < num_rows; ++row) {
    const std::span<uint32_t> mask =
        std::span(masks->words)
            .subspan(static_cast<size_t>(row) * masks->num_words, masks->num_words);
    if (!counts) {
      std::ranges::fill(mask, ~0u);
    } else {
      if (const Status filled = matcher.FillMask(mask, &work); !filled.ok()) {
        return fail(filled.error());
      }
      const Result<std::optional<int32_t>> only = matcher.OnlyAllowedToken(&work);
      if (!only.ok()) return fail(only.error());
      masks->only[row] = only->value_or(-1);
    }
    ++masks->num_made;
    if (!counts || row + 1 == num_rows) continue;
    const Result<bool> accepted = matcher.Accept(drafts[row], &work);
    if (!accepted.ok()) return fail(accepted.error());
    counts = *accepted && !matcher.IsTerminated();
  }
  matcher.Rollback(matcher.num_accepted() - num_accepted);
}

std::vector<int32_t> SlotConstraints::LikelyTokens(int32_t slot, int32_t max_tokens,
                                                   grammar::Work& work) {
  CHECK(IsActive(slot)) << "slot " << slot;
  if (!ReadTokens(slots_[slot], work).ok()) return {};
  if (slots_[slot].matcher->IsTerminated()) return {};
  return slots_[slot].matcher->LikelyTokens(max_tokens, &work);
}

Status SlotConstraints::Advance(int32_t slot, int32_t token, grammar::Work& work) {
  Slot& moved = slots_[slot];
  if (moved.unread.empty()) {
    moved.matcher->Learn(token, &work);
    const Result<bool> is_accepted = moved.matcher->Accept(token, &work);
    if (is_accepted.ok()) {
      CHECK(*is_accepted) << "token " << token << " is in the mask";
      return {};
    }
    if (is_accepted.error().kind != ErrorKind::kBusy) return is_accepted.error();
  }
  moved.unread.push_back(token);
  return {};
}

}  // namespace lapidary
