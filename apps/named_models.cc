#include "apps/named_models.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "apps/interrupts.h"
#include "session/bundled_models.h"

namespace lapidary {
namespace {

std::atomic<bool> interrupted = false;

// While it lives, Ctrl-C sets `interrupted`.
class InterruptFlag {
 public:
  InterruptFlag() {
    previous_ = std::signal(SIGINT, [](int) { interrupted = true; });
  }
  ~InterruptFlag() { std::signal(SIGINT, previous_); }
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

 private:
  void (*previous_)(int);
};

}  // namespace

Result<std::optional<HubNames>> FindModel(std::string* model, const ModelNeeds& needs) {
  ModelParts parts = {.weights = needs.weights, .text = needs.text, .media = needs.media};
  if (needs.drafting != nullptr && !needs.drafting->no_spec) {
    parts.assistant = &needs.drafting->spec_model;
    parts.fetches_assistant = needs.drafting->speculative_config.empty();
  }
  auto found = [&] {
    const InterruptFlag flag;
    return FindNamedModel(model, parts, interrupted);
  }();
  if (interrupted) {
    std::fprintf(stderr, "\nlapidary: stopped; the same command goes on from there\n");
    ExitInterrupted();
  }
  return found;
}

Result<std::optional<HubNames>> FindModelOrDefault(std::string* model, const ModelNeeds& needs) {
  if (const char* named = std::getenv("LAPIDARY_MODEL"); model->empty() && named != nullptr) {
    *model = named;
  }
  ASSIGN_OR_RETURN(auto found, FindModel(model, needs));
  RETURN_IF_ERROR(ResolveModel(model));
  return found;
}

Status TakeHubFlag(const std::string& hf_repo, std::string* model) {
  if (hf_repo.empty()) return {};
  if (!model->empty()) {
    return MakeError("name one model: '{}', or -hf {}", *model, hf_repo);
  }
  *model = GgufOfHub(hf_repo);
  return {};
}

}  // namespace lapidary
