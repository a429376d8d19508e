#include "apps/draft_report.h"

#include <fmt/ranges.h>

#include "base/json.h"

namespace lapidary {
namespace {

std::vector<double> AcceptedShares(const DraftStats& drafts) {
  std::vector<double> shares;
  for (const uint64_t count : drafts.accepted_at) {
    if (count == 0) break;
    shares.push_back(static_cast<double>(count) / static_cast<double>(drafts.num_rounds));
  }
  return shares;
}

double AcceptLength(const DraftStats& drafts) {
  return static_cast<double>(drafts.num_round_tokens) / static_cast<double>(drafts.num_rounds);
}

}  // namespace

nlohmann::ordered_json DraftReport(const DraftStats& drafts) {
  if (drafts.num_rounds == 0) return nullptr;
  nlohmann::ordered_json by_source = nlohmann::ordered_json::object();
  for (int idx = 0; idx < kNumDraftSources; ++idx) {
    const DraftCounts& counts = drafts.by_source[idx];
    if (counts.num_rounds == 0) continue;
    by_source[DraftSourceName(static_cast<DraftSource>(idx))] = {
        {"rounds", counts.num_rounds},
        {"draft_tokens", counts.num_drafts},
        {"accepted_tokens", counts.num_accepted}};
  }
  return {{"rounds", drafts.num_rounds},
          {"draft_tokens", drafts.num_drafts},
          {"accepted_tokens", drafts.num_accepted},
          {"accept_length", AcceptLength(drafts)},
          {"accepted_at", AcceptedShares(drafts)},
          {"by_source", by_source}};
}

std::string DraftReportText(const DraftStats& drafts) {
  if (drafts.num_rounds == 0) return "";
  return fmt::format(
      "drafting: {:.3f} tokens a round of {:.2f} drafts, accepted at {:.3f}\n",
      AcceptLength(drafts),
      static_cast<double>(drafts.num_drafts) / static_cast<double>(drafts.num_rounds),
      fmt::join(AcceptedShares(drafts), " / "));
}

}  // namespace lapidary
