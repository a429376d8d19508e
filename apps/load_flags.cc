#include "apps/load_flags.h"

#include <algorithm>

#include "apps/size_words.h"

namespace lapidary {
namespace {

CLI::Option* Add(CLI::App& command, const LoadField& field) {
  using Kind = LoadField::Kind;
  // The values are read when they are asked for.
  const CLI::callback_t keep = [](const CLI::results_t&) { return true; };
  CLI::Option* option = field.kind == Kind::kSwitch
                            ? command.add_flag(field.flag, field.help)
                            : command.add_option(field.flag, keep, field.help);
  switch (field.kind) {
    case Kind::kSwitch:
      break;
    case Kind::kInt:
      option->type_name("INT")->check(
          CLI::Range(static_cast<int64_t>(field.min), static_cast<int64_t>(field.max)));
      break;
    case Kind::kNumber:
      option->type_name("FLOAT")->check(CLI::Range(field.min, field.max));
      break;
    case Kind::kBytes:
      option->type_name("INT")->transform(SizeWords())->check(CLI::PositiveNumber);
      break;
    case Kind::kChoice:
      option->type_name("TEXT")->check(CLI::IsMember(field.choices));
      break;
  }
  // What passes here can be set: CLI11 takes more for a number than is read as one.
  option->check(
      [&field](const std::string& text) {
        LoadOptions scratch;
        const Status set = SetLoadField(field.name(), text, &scratch);
        return set.ok() ? std::string() : set.error().message;
      },
      "");
  if (!field.default_text.empty()) option->default_str(field.default_text);
  return option->group(field.group);
}

}  // namespace

std::vector<CLI::Option*> LoadFlags::AddTo(CLI::App& command, std::vector<std::string_view> names) {
  std::vector<CLI::Option*> options;
  for (const LoadField& field : LoadFields()) {
    const bool is_wanted =
        names.empty() || std::find(names.begin(), names.end(), field.name()) != names.end();
    if (!is_wanted) continue;
    options.push_back(Add(command, field));
    given_.emplace_back(&field, options.back());
  }
  return options;
}

LoadOptions LoadFlags::Options() const {
  LoadOptions options;
  for (const auto& [field, option] : given_) {
    if (option->count() > 0)
      CHECK_OK(SetLoadField(field->name(), option->results().back(), &options));
  }
  return options;
}

}  // namespace lapidary
