#include "server/ollama_models.h"

#include <algorithm>
#include <chrono>

#include "model/footprint.h"
#include "server/utc_time.h"

namespace lapidary {
namespace {

constexpr const char* kFamily = "gemma4";

std::string TimeOf(int64_t unix_time) {
  return UtcTime(std::chrono::system_clock::time_point(std::chrono::seconds(unix_time)));
}

// The format that most bytes of the weights are stored in.
std::string MainFormat(const Session& session) {
  const std::vector<WeightRow>& rows = session.weight_table();
  const auto largest =
      std::max_element(rows.begin(), rows.end(), [](const WeightRow& left, const WeightRow& right) {
        return left.stored_bytes < right.stored_bytes;
      });
  return largest == rows.end() ? "unknown" : largest->stored;
}

std::string ParameterSize(int64_t num_parameters) {
  const bool is_large = num_parameters >= 1'000'000'000;
  return fmt::format("{:.1f}{}", static_cast<double>(num_parameters) * (is_large ? 1e-9 : 1e-6),
                     is_large ? "B" : "M");
}

OrderedJson Details(const Session& session) {
  return {{"parent_model", ""},
          {"format", ""},
          {"family", kFamily},
          {"families", OrderedJson::array({kFamily})},
          {"parameter_size", ParameterSize(MakeFootprint(session.plan()).total())},
          {"quantization_level", MainFormat(session)}};
}

}  // namespace

std::string ServedOllamaName(const ServedModel& model, std::string name) {
  constexpr std::string_view kTag = ":latest";
  if (name.ends_with(kTag) && model.CheckName(name)) name.resize(name.size() - kTag.size());
  return name;
}

OrderedJson OllamaTags(const Session& session, const ServedModel& model, int64_t created) {
  OrderedJson models = OrderedJson::array();
  for (const std::string& name : model.names()) {
    models.push_back({{"name", name},
                      {"model", name},
                      {"modified_at", TimeOf(created)},
                      {"size", session.weights().total()},
                      {"digest", std::string(64, '0')},  // Some clients cut it to twelve digits.
                      {"details", Details(session)}});
  }
  return {{"models", std::move(models)}};
}

OrderedJson OllamaShow(const Session& session, const ServedModel& model, int64_t created) {
  OrderedJson capabilities = OrderedJson::array({"completion"});
  if (model.has_chat_template()) {
    capabilities.push_back("tools");
    capabilities.push_back("thinking");
  }
  if (session.media_limits().images > 0) capabilities.push_back("vision");
  const ModelPlan& plan = session.plan();
  return {{"modelfile", ""},
          {"parameters", ""},
          {"template", ""},
          {"license", ""},
          {"modified_at", TimeOf(created)},
          {"details", Details(session)},
          {"model_info",
           {{"general.architecture", kFamily},
            {"general.basename", model.name()},
            {"general.parameter_count", MakeFootprint(plan).total()},
            {"gemma4.block_count", plan.num_layers},
            {"gemma4.context_length", model.max_model_len()},
            {"gemma4.embedding_length", plan.hidden_size}}},
          {"capabilities", std::move(capabilities)}};
}

}  // namespace lapidary
