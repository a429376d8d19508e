#include "grammar/string_formats.h"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>

namespace lapidary::grammar {
namespace {

std::unordered_map<std::string_view, std::string> MakeFormats() {
  // Days that exist: February 29 in leap years only.
  const std::string leap_year =
      "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)";
  const std::string date =
      "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])"
      "|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"
      "|02-(?:0[1-9]|1\\d|2[0-8]))|" +
      leap_year + "-02-29)";
  const std::string time =
      "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]"
      "\\d)";
  const std::string octet = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  const std::string ipv4 = octet + "(?:\\." + octet + "){3}";
  const std::string h16 = "[0-9A-Fa-f]{1,4}";
  const std::string ls32 = "(?:" + h16 + ":" + h16 + "|" + ipv4 + ")";
  std::string ipv6 = "(?:(?:" + h16 + ":){6}" + ls32;
  for (int num_left = 0; num_left <= 5; ++num_left) {  // groups before ::
    const int num_right = 5 - num_left;
    ipv6 += "|(?:" +
            (num_left == 0 ? std::string()
                           : "(?:" + h16 + ":){0," + std::to_string(num_left - 1) + "}" + h16) +
            ")?::(?:" + h16 + ":){" + std::to_string(num_right) + "}" + ls32;
  }
  ipv6 += "|(?:(?:" + h16 + ":){0,5}" + h16 + ")?::" + h16 + "|(?:(?:" + h16 + ":){0,6}" + h16 +
          ")?::)";
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  const std::string hostname = label + "(?:\\." + label + ")*";
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  const std::string pchar = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
  const std::string userinfo = "(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*";
  const std::string reg_name = "(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*";
  const std::string authority =
      "(?:" + userinfo + "@)?(?:" + reg_name + "|\\[[0-9A-Fa-f:.]+\\])(?::\\d{0,5})?";
  const std::string query = "(?:\\?(?:" + pchar + "|[/?])*)?(?:#(?:" + pchar + "|[/?])*)?";
  const std::string abempty = "(?:/" + pchar + "*)*";
  const std::string absolute = "/(?:" + pchar + "+" + abempty + ")?";
  const std::string uri = "[A-Za-z][A-Za-z0-9+.-]*:(?://" + authority + abempty + "|" + absolute +
                          "|" + pchar + "+" + abempty + ")?" + query;
  const std::string segment_nc = "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})+";
  const std::string relative =
      "(?://" + authority + abempty + "|" + absolute + "|" + segment_nc + abempty + ")?" + query;
  const std::string time_part = "T(?:\\d+H(?:\\d+M)?(?:\\d+S)?|\\d+M(?:\\d+S)?|\\d+S)";
  const std::string duration =
      "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:" + time_part + ")?|" +
      time_part + ")";
  return {
      {"date", date},
      {"time", time},
      {"date-time", date + "[Tt]" + time},
      {"duration", duration},
      {"email", atom + "(?:\\." + atom + ")*@" + hostname},
      {"hostname", "(?=.{1,253}$)" + hostname},
      {"host-name", "(?=.{1,253}$)" + hostname},
      {"ipv4", ipv4},
      {"ip-address", ipv4},
      {"ipv6", ipv6},
      {"uuid", "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"},
      {"uri", uri},
      {"uri-reference", "(?:" + uri + "|" + relative + ")"},
      {"json-pointer", "(?:/(?:[^/~]|~[01])*)*"},
  };
}

}  // namespace

std::optional<std::string_view> FormatPattern(std::string_view format) {
  static const std::unordered_map<std::string_view, std::string> formats = MakeFormats();
  const auto found = formats.find(format);
  if (found == formats.end()) return std::nullopt;
  return found->second;
}

bool IsUnsupportedFormat(std::string_view format) {
  static constexpr std::array<std::string_view, 7> kUnsupported = {
      "idn-email", "idn-hostname",          "iri",         "iri-reference",
      "regex",     "relative-json-pointer", "uri-template"};
  return std::ranges::find(kUnsupported, format) != kUnsupported.end();
}

}  // namespace lapidary::grammar
