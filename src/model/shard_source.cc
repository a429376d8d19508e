#include "model/shard_source.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lapidary {
namespace {

// Rows of one stored matrix.
struct Piece {
  MatrixRef from;
  IndexRange rows;
};

// What `parts`, which follow each other, have of the ranges.
std::vector<Piece> PiecesOf(const std::vector<MatrixRef>& parts,
                            const std::vector<IndexRange>& ranges) {
  std::vector<Piece> pieces;
  for (const IndexRange& range : ranges) {
    int first = 0;  // row of the part at hand
    for (const MatrixRef& part : parts) {
      const IndexRange rows = {std::max(range.begin - first, 0),
                               std::min(range.end - first, part.rows)};
      if (rows.count() > 0) pieces.push_back({part, rows});
      first += part.rows;
    }
  }
  return pieces;
}

// Whether a format lets itself be cut where a range begins and ends.
bool CanCut(IndexRange range, int64_t total, int unit) {
  return range.begin % unit == 0 && (range.end % unit == 0 || range.end == total);
}

Status CheckCut(const TensorCut& cut, const Piece& piece) {
  const CutUnit unit = CutUnitOf(piece.from.format);
  if (CanCut(piece.rows, piece.from.rows, unit.rows) &&
      CanCut(cut.cols, piece.from.cols, unit.cols)) {
    return {};
  }
  return MakeError(
      "{}: a rank's rows {} to {}, columns {} to {} are no whole blocks of {}, which are {} x {}",
      cut.whole.name, piece.rows.begin, piece.rows.end, cut.cols.begin, cut.cols.end,
      FormatName(piece.from.format), unit.rows, unit.cols);
}

// Whether the second piece can lie behind the first in one matrix.
bool CanJoin(const Piece& piece, const Piece& next) {
  const WeightFormat& format = piece.from.format;
  if (next.from.format != format || next.from.tensor_scale != piece.from.tensor_scale) return false;
  if (format.has_scales() && format.group.rows == 0) return next.from.data == piece.from.data;
  return piece.rows.count() % CutUnitOf(format).rows == 0;
}

}  // namespace

Result<std::unique_ptr<ShardSource>> ShardSource::Make(const std::vector<TensorCut>& cuts,
                                                       std::shared_ptr<const TensorSource> whole,
                                                       ThreadPool& threads) {
  auto source = std::unique_ptr<ShardSource>(new ShardSource(std::move(whole)));
  for (const TensorCut& cut : cuts) RETURN_IF_ERROR(source->Add(cut, threads));
  return source;
}

Status ShardSource::Add(const TensorCut& cut, ThreadPool& threads) {
  Tensor& tensor = tensors_[cut.whole.name];
  tensor.whole = cut.whole;
  if (cut.is_whole()) return {};
  ASSIGN_OR_RETURN(const std::vector<MatrixRef> parts, whole_->GetStored(cut.whole));
  const std::vector<Piece> pieces = PiecesOf(parts, cut.rows);
  for (const Piece& piece : pieces) RETURN_IF_ERROR(CheckCut(cut, piece));
  for (size_t begin = 0, end; begin < pieces.size(); begin = end) {
    end = begin + 1;
    int num_rows = pieces[begin].rows.count();
    while (end < pieces.size() && CanJoin(pieces[end - 1], pieces[end])) {
      num_rows += pieces[end++].rows.count();
    }
    const Piece& first = pieces[begin];
    if (end == begin + 1 && cut.has_all_cols()) {
      tensor.parts.push_back(first.from.Rows(first.rows.begin, num_rows));
      continue;
    }
    ASSIGN_OR_RETURN(MatrixCopy copy,
                     MatrixCopy::Allocate(first.from.format, num_rows, cut.cols.count(),
                                          first.from.tensor_scale));
    for (size_t idx = begin; idx < end; ++idx) {
      copy.Append(pieces[idx].from, pieces[idx].rows, cut.cols, threads);
    }
    tensor.parts.push_back(copy.matrix());
    copied_bytes_ += copy.matrix().bytes().total();
    copies_.push_back(std::move(copy));
  }
  return {};
}

Result<TensorView> ShardSource::Get(const TensorSpec& spec) const {
  const auto it = tensors_.find(spec.name);
  CHECK(it != tensors_.end()) << spec.name;
  const Tensor& tensor = it->second;
  if (tensor.parts.empty()) return whole_->Get(tensor.whole);
  const MatrixRef& matrix = tensor.parts.front();
  if (tensor.parts.size() > 1 || !matrix.format.has_dtype()) {
    return MakeError("{} is {}, which has no values of its own to be read", spec.name,
                     FormatName(matrix.format));
  }
  return TensorView{matrix.As<std::byte>(), matrix.format.unit, spec.shape};
}

Result<std::vector<MatrixRef>> ShardSource::GetStored(const TensorSpec& spec) const {
  const auto it = tensors_.find(spec.name);
  CHECK(it != tensors_.end()) << spec.name;
  if (it->second.parts.empty()) return whole_->GetStored(it->second.whole);
  return it->second.parts;
}

}  // namespace lapidary
