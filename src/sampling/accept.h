// Which rows of a verified round count: the one rule, for every executor.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace lapidary {

// Row 0 stands for the sequence's last token, row i + 1 for draft i. Whether the row behind row
// `row` counts too, given the token drawn from it: only if that is its draft.
LAPIDARY_HOST_DEVICE inline bool AcceptsDraft(int32_t token, int32_t draft) {
  return draft >= 0 && token == draft;
}

// Rows that count, of 1 + num_drafts: those up to the first whose token is not its draft.
// token_of(row) and draft_of(row) give ids.
template <typename TokenOf, typename DraftOf>
LAPIDARY_HOST_DEVICE inline int32_t NumAcceptedRows(int32_t num_drafts, const TokenOf& token_of,
                                                    const DraftOf& draft_of) {
  int32_t row = 0;
  while (row < num_drafts && AcceptsDraft(token_of(row), draft_of(row))) ++row;
  return row + 1;
}

}  // namespace lapidary
