#include "eval/scores.h"

#include <algorithm>

namespace lapidary {
namespace {

constexpr std::string_view kTotal = "total";
constexpr std::string_view kIndent = "  ";

}  // namespace

Json Score::ToJson() const {
  return {{"accuracy", accuracy()}, {"correct", correct}, {"count", count}};
}

void Scores::Add(const std::string& task, const std::string& bin, bool is_right) {
  total.Add(is_right);
  TaskScore& score = tasks[task];
  score.whole.Add(is_right);
  if (!bin.empty()) score.bins[bin].Add(is_right);
}

Json Scores::ToJson() const {
  Json json = total.ToJson();
  json["tasks"] = Json::object();
  for (const auto& [name, task] : tasks) {
    Json entry = task.whole.ToJson();
    for (const auto& [bin, score] : task.bins) entry["bins"][bin] = score.ToJson();
    json["tasks"][name] = std::move(entry);
  }
  return json;
}

std::string Scores::ToText() const {
  size_t width = kTotal.size();
  for (const auto& [name, task] : tasks) {
    width = std::max(width, name.size());
    for (const auto& [bin, score] : task.bins) width = std::max(width, kIndent.size() + bin.size());
  }
  std::string text = fmt::format("{:<{}}  right     of\n", "task", width);
  const auto add = [&](const std::string& name, const Score& score) {
    text += fmt::format("{:<{}}  {:5}  {:5}  {:5.1f}%\n", name, width, score.correct, score.count,
                        100 * score.accuracy());
  };
  for (const auto& [name, task] : tasks) {
    add(name, task.whole);
    for (const auto& [bin, score] : task.bins) add(std::string(kIndent) + bin, score);
  }
  add(std::string(kTotal), total);
  return text;
}

}  // namespace lapidary
