#include "text/vocabulary.h"

#include <functional>

namespace lapidary {

Status Vocabulary::Add(std::string_view piece, int64_t id) {
  if (id < 0 || id > kMaxId) {
    return MakeError("token '{}' has the id {}, which is outside 0..{}", piece, id, kMaxId);
  }
  if (arena_.size() + piece.size() >= kHole) {
    return MakeError("the vocabulary holds more than 4 GiB of text");
  }
  if (num_pieces_ * 2 >= slots_.size()) Grow();
  const size_t slot = Probe(piece);
  if (slots_[slot] != kFree) return MakeError("token '{}' is listed twice", piece);
  const auto id32 = static_cast<int32_t>(id);
  if (Has(id32)) {
    return MakeError("the id {} is given to both '{}' and '{}'", id, Piece(id32), piece);
  }
  if (id >= size()) by_id_.resize(id + 1);
  by_id_[id] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(piece.size())};
  arena_ += piece;
  slots_[slot] = id32;
  ++num_pieces_;
  return {};
}

std::optional<int32_t> Vocabulary::Find(std::string_view piece) const {
  if (slots_.empty()) return std::nullopt;
  const int32_t id = slots_[Probe(piece)];
  return id == kFree ? std::nullopt : std::optional(id);
}

size_t Vocabulary::Probe(std::string_view piece) const {
  const size_t mask = slots_.size() - 1;
  size_t idx = std::hash<std::string_view>{}(piece)&mask;
  while (slots_[idx] != kFree && Piece(slots_[idx]) != piece) idx = (idx + 1) & mask;
  return idx;
}

void Vocabulary::Grow() {
  const std::vector<int32_t> old = std::move(slots_);
  slots_.assign(old.empty() ? 1024 : old.size() * 2, kFree);
  for (const int32_t id : old) {
    if (id != kFree) slots_[Probe(Piece(id))] = id;
  }
}

}  // namespace lapidary
