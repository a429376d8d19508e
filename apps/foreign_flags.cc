#include "apps/foreign_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/edit_distance.h"

namespace lapidary {
namespace {

struct ForeignFlag {
  const char* names;  // between blanks
  const char* here;   // what does the same
};

// llama.cpp's, which people who come from there type first.
constexpr ForeignFlag kFlags[] = {
    {" -m --model ", "the model is named without a flag: MODEL, or -hf OWNER/NAME:QUANT"},
    {" -c --ctx-size ", "--max-model-len N bounds a prompt and its answer; in chat, --context N"},
    {" -ngl --n-gpu-layers --gpu-layers ",
     "a model runs on the GPU as a whole, or on the CPU: --device auto, cuda or cpu"},
    {" -t --threads -tb --threads-batch ", "--threads N, of commands that run a model"},
    {" -np --parallel ", "--max-num-seqs N, of serve"},
    {" -n --n-predict --predict ", "--max-tokens N"},
    {" -p ", "--prompt TEXT continues a text, --chat TEXT answers a message"},
    {" -b --batch-size -ub --ubatch-size ",
     "--max-num-batched-tokens N, of serve; elsewhere --chunk-rows N"},
    {" -fa --flash-attn ", "attention always runs in blocks; leave it out"},
    {" --mmproj -mm ", "towers are in the mmproj file beside the model; leave it out"},
    {" -md --model-draft ", "--spec-model MODEL; the model's own assistant is found without it"},
    {" --jinja ", "chat templates are always rendered; leave it out"},
    {" --temp ", "--temperature T"},
    {" -hff --hf-file ", "the file is chosen by its type: -hf OWNER/NAME:QUANT"},
    {" --no-mmap --mlock ", "leave it out: weights are mapped from their files"},
};

}  // namespace

std::string ExplainUnknownFlag(const std::string& typed, const CLI::App& command) {
  const std::string flag = typed.substr(0, typed.find('='));
  const std::string begin = fmt::format("{}: {} has no such flag", flag, command.get_name());
  for (const ForeignFlag& foreign : kFlags) {
    if (std::string_view(foreign.names).find(" " + flag + " ") == std::string_view::npos) continue;
    return fmt::format("{}; here: {}", begin, foreign.here);
  }
  std::string nearest;
  size_t least = std::string::npos;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const size_t distance = EditDistance(flag, "--" + name);
      if (distance >= least) continue;
      nearest = "--" + name;
      least = distance;
    }
  }
  // Further away it is a guess that helps nobody.
  const bool is_near = least <= std::max<size_t>(flag.size() / 3, 1);
  return fmt::format("{}{}; `lapidary {} --help` lists them", begin,
                     is_near ? fmt::format("; the nearest is {}", nearest) : "",
                     command.get_name());
}

}  // namespace lapidary
