#include "server/byte_budget.h"

namespace lapidary {

ApiError ByteLease::Refusal(size_t num_bytes) const {
  if (budget_->HasRoomAlone(num_bytes, num_bytes_)) return OutOfMemory();
  return {413, fmt::format("reading the request takes {} bytes of memory, and it may have {} "
                           "(--max-request-memory of the server)",
                           num_bytes_ + num_bytes, budget_->MaxTaken(num_bytes, num_bytes_))};
}

}  // namespace lapidary
