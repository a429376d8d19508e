// Rows of a prompt that are no token's embedding but what a tower made of a picture or a sound.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace lapidary {

struct SoftTokenRun {
  int32_t position = 0;  // of its first row in the sequence
  int32_t length = 0;
  bool is_image = false;
  std::shared_ptr<const std::vector<float>> rows;  // [length, hidden]

  int32_t end() const { return position + length; }
};

// Of one prompt: in order, apart from each other.
using SoftTokenRuns = std::vector<SoftTokenRun>;

// The run that holds the position; null: a token does.
inline const SoftTokenRun* FindRun(const SoftTokenRuns& runs, int32_t position) {
  const auto behind =
      std::upper_bound(runs.begin(), runs.end(), position,
                       [](int32_t value, const SoftTokenRun& run) { return value < run.position; });
  if (behind == runs.begin()) return nullptr;
  const SoftTokenRun& run = *(behind - 1);
  return position < run.end() ? &run : nullptr;
}

// Rows of a chunk from `begin` on that cuts no image: fewer than asked for where an image begins in
// it, more where one begins with it.
//
//   | text | image ....... | text      asked: ^       ->  | text |
//          | image ....... | text      asked: ^       ->  | image ....... |
inline int32_t RowsWithWholeImages(const SoftTokenRuns& runs, int32_t begin, int32_t num_rows) {
  if (num_rows <= 0) return num_rows;
  const SoftTokenRun* cut = FindRun(runs, begin + num_rows);
  if (cut == nullptr || !cut->is_image || cut->position == begin + num_rows) return num_rows;
  return (cut->position > begin ? cut->position : cut->end()) - begin;
}

}  // namespace lapidary
