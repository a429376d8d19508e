// Cost of the chat layer: parsing a template, rendering a conversation, parsing output.
#include <benchmark/benchmark.h>

#include <fstream>
#include <iterator>

#include "text/chat_template.h"
#include "text/output_parser.h"

namespace lapidary {
namespace {

using Json = nlohmann::ordered_json;

std::string Source() {
  std::ifstream file(std::string(LAPIDARY_SOURCE_DIR) +
                     "/resources/chat_templates/gemma4_large.jinja");
  return {std::istreambuf_iterator<char>(file), {}};
}

ChatInput Conversation(int num_turns, size_t message_bytes) {
  ChatInput input;
  for (int turn = 0; turn < num_turns; ++turn) {
    const char* role = turn % 2 == 0 ? "user" : "assistant";
    input.messages.push_back({{"role", role}, {"content", std::string(message_bytes, 'a')}});
  }
  return input;
}

void BM_ParseTemplate(benchmark::State& state) {
  const std::string source = Source();
  for (auto _ : state) benchmark::DoNotOptimize(ChatTemplate::FromString(source));
}
BENCHMARK(BM_ParseTemplate)->Unit(benchmark::kMicrosecond);

// Arguments: messages, bytes per message.
void BM_Render(benchmark::State& state) {
  const auto chat = ChatTemplate::FromString(Source());
  const ChatInput input = Conversation(static_cast<int>(state.range(0)), state.range(1));
  for (auto _ : state) benchmark::DoNotOptimize(chat->RenderPrompt(input));
  state.SetBytesProcessed(state.iterations() * state.range(0) * state.range(1));
}
BENCHMARK(BM_Render)
    ->Args({1, 100})
    ->Args({21, 500})
    ->Args({501, 200})
    ->Args({1, 1 << 20})
    ->Unit(benchmark::kMicrosecond);

void BM_ParseOutput(benchmark::State& state) {
  for (auto _ : state) {
    OutputParser parser({});
    std::vector<OutputEvent> events;
    for (int token = 0; token < 1000; ++token) {
      events.clear();
      parser.Push(9999, " word", &events);
      benchmark::DoNotOptimize(events);
    }
  }
  state.SetItemsProcessed(state.iterations() * 1000);
}
BENCHMARK(BM_ParseOutput);

}  // namespace
}  // namespace lapidary
