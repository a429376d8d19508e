// What the subcommands that measure the engine share: which model, where the result goes.
#pragma once

#include <string>

#include "apps/model_flags.h"
#include "base/json.h"

namespace lapidary {

struct EngineBenchFlags {
  ModelFlags model;
  std::string preset;
  uint64_t seed = 0;
  bool json = false;
  std::string output_json;

  void AddTo(CLI::App& command);
  // Takes --preset as the model; it has no weights, so they are dummies. With neither, the model is
  // the bundled one.
  Status Complete();
  // Room for the sequences; refuses lengths that the model cannot hold before it loads anything.
  Result<std::unique_ptr<Session>> Load(int64_t max_tokens, int num_sequences,
                                        int max_num_seqs = 0) const;
  // Where Load runs the model.
  DeviceKind Device() const;
  KvFormat CacheFormat() const {
    return model.load.Options().kv_format.value_or(DefaultKvFormat(Device()));
  }
  // "text" or, with --json, `result`, on stdout; `result` in the file if one is named.
  Status Print(const std::string& text, const nlohmann::ordered_json& result) const;
};

// --input-len and --output-len, with the values they have as defaults.
void AddLengthFlags(CLI::App& command, int& input_len, int& output_len);

}  // namespace lapidary
