// Parts of stored matrices: where a format lets itself be cut, and copies of what does not lie
// together. Rows alone need no copy (MatrixRef::Rows).
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "base/result.h"
#include "base/thread_pool.h"
#include "tensor/matrix_ref.h"

namespace lapidary {

// [begin, end)
struct IndexRange {
  int begin = 0;
  int end = 0;

  int count() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};

// Cuts lie at multiples of so many rows and columns: what shares a scale, a block or a word stays
// together.
struct CutUnit {
  int rows = 1;
  int cols = 1;
};
// Of row-major and block formats.
CutUnit CutUnitOf(const WeightFormat& format);

// Ranges of matrices of one format behind each other, in memory of its own.
class MatrixCopy {
 public:
  // For `rows` rows of `cols` columns. `tensor_scale` is kept, not copied.
  static Result<MatrixCopy> Allocate(const WeightFormat& format, int rows, int cols,
                                     const void* tensor_scale);

  // The next rows. Both ranges are cut where the format allows it; `cols` are as many as the
  // copy's.
  void Append(const MatrixRef& from, IndexRange rows, IndexRange cols, ThreadPool& threads);

  // Once all rows are there.
  const MatrixRef& matrix() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  MatrixRef matrix_;
  int num_appended_ = 0;
  std::unique_ptr<std::byte[], Free> memory_;
};

}  // namespace lapidary
