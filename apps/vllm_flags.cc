#include "apps/vllm_flags.h"

#include <spdlog/spdlog.h>

#include <array>

namespace lapidary {
namespace {

struct ForeignFlag {
  const char* name;
  bool takes_value;
  bool is_harmless;  // Left out, the server does what was asked for.
  const char* sentence;
};

constexpr std::array kFlags = {
    ForeignFlag{"--dtype", true, true, "weights run in the type they are stored in"},
    ForeignFlag{"--trust-remote-code", false, true, "no code comes with a model here"},
    ForeignFlag{"--enable-auto-tool-choice", false, true, "tool calls are always parsed"},
    ForeignFlag{"--tool-call-parser", true, true, "Gemma's tool calls are always parsed"},
    ForeignFlag{"--reasoning-parser", true, true, "thoughts are always told apart"},
    ForeignFlag{"--enable-reasoning", false, true, "thoughts are always told apart"},
    ForeignFlag{"--enable-chunked-prefill", false, true, "long prompts are always cut"},
    ForeignFlag{"--enable-prefix-caching", false, true,
                "it is on; --no-enable-prefix-caching turns it off"},
    ForeignFlag{"--disable-log-requests", false, true, "use --access-log off"},
    ForeignFlag{"--disable-log-stats", false, true, "use --log-level warning"},
    ForeignFlag{"--uvicorn-log-level", true, true, "use --log-level"},
    ForeignFlag{"--block-size", true, true, "page sizes follow from the model"},
    ForeignFlag{"--swap-space", true, true, "sequences that are put back are computed again"},
    ForeignFlag{"--generation-config", true, true, "the checkpoint's own is used"},
    ForeignFlag{"--compilation-config", true, true, "nothing is compiled at start"},
    ForeignFlag{"--pipeline-parallel-size", true, false, "a model runs on one GPU here"},
    ForeignFlag{"--data-parallel-size", true, false, "start one server per GPU instead"},
    ForeignFlag{
        "--chat-template", true, false,
        "the template beside the tokenizer is used; --tokenizer can name another directory"},
    ForeignFlag{"--max-loras", true, true, "a step takes any number of adapters"},
    ForeignFlag{"--lora-dtype", true, true, "adapters are kept in the type they are stored in"},
    ForeignFlag{"--fully-sharded-loras", false, true, "adapters run on one device"},
    ForeignFlag{"--root-path", true, false, "serve under a path by a proxy in front"},
};

}  // namespace

void VllmFlags::AddTo(CLI::App& command) {
  for (size_t index = 0; index < kFlags.size(); ++index) {
    const ForeignFlag& flag = kFlags[index];
    CLI::Option* option =
        flag.takes_value ? command.add_option(flag.name, ignored_values_)->allow_extra_args(false)
                         : command.add_flag(flag.name);
    given_.push_back({option->group(""), index});
  }
}

Status VllmFlags::Check() const {
  for (const auto& [option, index] : given_) {
    if (option->count() == 0) continue;
    const ForeignFlag& flag = kFlags[index];
    if (!flag.is_harmless) return MakeError("{}: {}", flag.name, flag.sentence);
    spdlog::info("{} is not needed: {}", flag.name, flag.sentence);
  }
  return {};
}

}  // namespace lapidary
