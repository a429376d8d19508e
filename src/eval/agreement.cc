#include "eval/agreement.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "eval/pebble_suite.h"

namespace lapidary {
namespace {

constexpr size_t kMaxShown = 20;  // of the differing items, unless all are asked for

std::string Quoted(const std::string& text) { return Json(text).dump(); }

const char* Verdict(const PebbleAnswer& answer) { return answer.is_right ? "right" : "wrong"; }

}  // namespace

int64_t Agreement::same_verdict() const {
  return count - std::count_if(differences.begin(), differences.end(),
                               [](const Difference& one) { return !one.same_verdict(); });
}

Json Agreement::ToJson() const {
  Json list = Json::array();
  for (const Difference& one : differences) {
    list.push_back({{"id", one.ours.id},
                    {"position", one.position},
                    {"same_verdict", one.same_verdict()},
                    {"correct", one.ours.is_right},
                    {"text", one.ours.text},
                    {"continuation", one.continuation},
                    {"reference_correct", one.reference.is_right},
                    {"reference_text", one.reference.text},
                    {"reference_continuation", one.reference_continuation}});
  }
  return {{"count", count},
          {"same_answer", same_answer()},
          {"same_verdict", same_verdict()},
          {"differences", std::move(list)}};
}

std::string Agreement::ToText(const std::string& where, bool verbose) const {
  std::string text = fmt::format(
      "same answer, token for token: {} of {}; same verdict: {} of {} (reference: {})\n",
      same_answer(), count, same_verdict(), count, where);
  for (size_t idx = 0; idx < differences.size(); ++idx) {
    if (idx == kMaxShown && !verbose) {
      text += fmt::format("... and {} more (--verbose shows all)\n", differences.size() - idx);
      break;
    }
    const Difference& one = differences[idx];
    text += fmt::format("{} differs from token {}\n", one.ours.id, one.position);
    text += fmt::format("  here       ({}) {}\n", Verdict(one.ours),
                        Quoted(verbose ? one.ours.text : one.continuation));
    text += fmt::format("  reference  ({}) {}\n", Verdict(one.reference),
                        Quoted(verbose ? one.reference.text : one.reference_continuation));
  }
  return text;
}

Agreement CompareAnswers(const Tokenizer& tokenizer, const std::vector<PebbleAnswer>& ours,
                         const std::vector<PebbleAnswer>& references) {
  CHECK_EQ(ours.size(), references.size());
  Agreement agreement;
  agreement.count = std::ssize(ours);
  for (size_t idx = 0; idx < ours.size(); ++idx) {
    const PebbleAnswer& answer = ours[idx];
    const PebbleAnswer& reference = references[idx];
    CHECK(answer.id == reference.id) << answer.id << " beside " << reference.id;
    if (answer.ids == reference.ids) continue;
    const auto split = std::mismatch(answer.ids.begin(), answer.ids.end(), reference.ids.begin(),
                                     reference.ids.end());
    agreement.differences.push_back(
        {.ours = answer,
         .reference = reference,
         .position = split.first - answer.ids.begin(),
         .continuation = AnswerText(tokenizer, std::span(split.first, answer.ids.end())),
         .reference_continuation =
             AnswerText(tokenizer, std::span(split.second, reference.ids.end()))});
  }
  return agreement;
}

}  // namespace lapidary
