// The options of loading a model that users set, each once: its name, what it does, which values it
// takes. The command line, the environment, config files, C++ and Python are all filled in from
// this table, so that a new option is a field of LoadOptions, a row here, and the code that heeds
// it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "load/load_model.h"

namespace lapidary {

struct LoadField {
  enum class Kind {
    kSwitch,  // "true" or "false", also as on, yes and 1, off, no and 0
    kInt,
    kNumber,
    kBytes,   // above 0
    kChoice,  // one of `choices`
  };
  // A value as it was read: what of it counts is said by the kind.
  struct Value {
    std::string text;
    bool is_on = false;
    int64_t integer = 0;
    double number = 0.0;
  };

  const char*
      flag;  // "--gpu-memory"; in config files without the dashes, in Python and C++ with '_'
  const char* group;  // in --help
  Kind kind;
  std::string help;
  std::string default_text;  // for --help; empty: `help` tells it
  void (*set)(LoadOptions& options, const Value& value);
  double min = 0.0;  // of kInt and kNumber
  double max = 0.0;
  std::vector<std::string> choices = {};

  std::string_view name() const { return std::string_view(flag).substr(2); }
};

const std::vector<LoadField>& LoadFields();
// By its name, in either spelling; null: there is none.
const LoadField* FindLoadField(std::string_view name);
// Sets the field from a text such as "0.8", "true" or "q4_0". The error names it as `name` does.
Status SetLoadField(std::string_view name, const std::string& text, LoadOptions* options);

}  // namespace lapidary
