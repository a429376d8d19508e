#include "text/bpe.h"

#include <algorithm>

#include "text/bpe_encoder.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

constexpr uint32_t kSpaceMark = 0x2581;  // U+2581, what the normalizer makes of a space

uint32_t FirstCodePoint(std::string_view piece) { return ReadUtf8(piece).code_point; }

uint32_t LastCodePoint(std::string_view piece) {
  size_t begin = piece.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(piece[begin]) & 0xC0) == 0x80) --begin;
  return ReadUtf8(piece.substr(begin)).code_point;
}

}  // namespace

Result<Bpe> Bpe::Build(const Vocabulary& vocabulary, const MergeList& merges) {
  Bpe bpe;
  bpe.ascii_ids_.fill(kNoId);
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = fmt::format("<0x{:02X}>", byte);
    const auto id = vocabulary.Find(name);
    if (!id) return MakeError("model.vocab lacks the byte token {}", name);
    bpe.byte_ids_[byte] = *id;
  }
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.Has(id)) continue;
    const std::string_view piece = vocabulary.Piece(id);
    if (piece.empty()) continue;
    const Utf8Char first = ReadUtf8(piece);
    if (first.num_bytes == piece.size()) bpe.AddCodePoint(first.code_point, id);
  }

  const auto is_byte_token = [&](int32_t id) {
    return std::find(bpe.byte_ids_.begin(), bpe.byte_ids_.end(), id) != bpe.byte_ids_.end();
  };
  bpe.merged_ids_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view left = merges.Left(rank);
    const std::string_view right = merges.Right(rank);
    const auto left_id = vocabulary.Find(left);
    const auto right_id = vocabulary.Find(right);
    const auto union_id = vocabulary.Find(merges.Union(rank));
    if (left.empty() || right.empty() || !left_id || !right_id || !union_id) {
      const std::string_view missing = !left_id ? left : !right_id ? right : merges.Union(rank);
      return MakeError("model.merges[{}] ('{}', '{}') needs the piece '{}', which {}", rank, left,
                       right, missing,
                       left.empty() || right.empty() ? "is empty" : "model.vocab does not have");
    }
    // A pair listed twice keeps its last rank, as in the `tokenizers` package.
    bpe.ranks_.Set(uint64_t(*left_id) << 32 | uint32_t(*right_id), static_cast<uint32_t>(rank));
    bpe.merged_ids_.push_back(*union_id);
    bpe.AddJoint(LastCodePoint(left), FirstCodePoint(right));
    // Byte tokens read "<0xHH>": the length is tested first because this loop is hot.
    bpe.merges_bytes_ |= (left.size() == 6 && is_byte_token(*left_id)) ||
                         (right.size() == 6 && is_byte_token(*right_id));
  }
  return bpe;
}

// A space reaches the tables as U+2581, and both share the slot of the space in the ASCII tables.
// A piece that is a real space can never be reached and must not take that slot.
void Bpe::AddCodePoint(uint32_t code_point, int32_t id) {
  if (code_point == ' ') return;
  if (code_point == kSpaceMark) ascii_ids_[' '] = id;
  if (code_point < 128) ascii_ids_[code_point] = id;
  if (code_point >= 128) code_point_ids_.Set(code_point, static_cast<uint32_t>(id));
}

void Bpe::AddJoint(uint32_t left, uint32_t right) {
  if (left == ' ' || right == ' ') return;
  if (left == kSpaceMark) left = ' ';
  if (right == kSpaceMark) right = ' ';
  if (left < 128 && right < 128) {
    ascii_joints_.set(left << 7 | right);
  } else {
    joints_.Set(uint64_t{left} << 32 | right, 0);
  }
}

void Bpe::Encode(std::string_view text, std::vector<int32_t>* ids) const {
  BpeEncoder(*this, text, ids).Run();
}

}  // namespace lapidary
