// How many answers were right, task by task.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/json_fields.h"

namespace lapidary {

struct Score {
  int64_t correct = 0;
  int64_t count = 0;

  void Add(bool is_right) {
    correct += is_right;
    ++count;
  }
  double accuracy() const {
    return count == 0 ? 0.0 : static_cast<double>(correct) / static_cast<double>(count);
  }
  // {"accuracy", "correct", "count"}
  Json ToJson() const;
};

struct TaskScore {
  Score whole;
  std::map<std::string, Score> bins;  // parts of the task, where it has some
};

struct Scores {
  Score total;
  std::map<std::string, TaskScore> tasks;

  // An empty bin: none.
  void Add(const std::string& task, const std::string& bin, bool is_right);

  // The total's members and "tasks", by name.
  Json ToJson() const;
  // Lines of "task  right  of  share", the total last.
  std::string ToText() const;
};

}  // namespace lapidary
