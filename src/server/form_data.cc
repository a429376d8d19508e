#include "server/form_data.h"

namespace lapidary {
namespace {

constexpr std::string_view kNewline = "\r\n";

// What follows `key="` up to the quote in the headers of a field; empty: there is none.
std::string QuotedParameter(std::string_view headers, std::string_view key) {
  const std::string start = std::string(key) + "=\"";
  // Not that of another parameter which ends alike: filename="..." holds name="...".
  for (size_t at = headers.find(start); at != std::string_view::npos;
       at = headers.find(start, at + 1)) {
    if (at == 0 || (headers[at - 1] != ' ' && headers[at - 1] != ';')) continue;
    const size_t begin = at + start.size();
    const size_t end = headers.find('"', begin);
    if (end == std::string_view::npos) return "";
    return std::string(headers.substr(begin, end - begin));
  }
  return "";
}

ApiError NotAForm() {
  return BadRequest("file", "the body must be multipart/form-data with a 'file'");
}

}  // namespace

//   --boundary CRLF headers CRLF CRLF value CRLF --boundary ... CRLF --boundary--
ApiStatus ParseFormData(std::string_view body, std::vector<FormField>* fields) {
  const size_t line_end = body.find(kNewline);
  // RFC 2046: a boundary has at most 70 characters.
  if (!body.starts_with("--") || line_end == std::string_view::npos || line_end > 72) {
    return NotAForm();
  }
  const std::string separator = std::string(kNewline) + std::string(body.substr(0, line_end));
  size_t at = line_end;
  while (body.substr(at).starts_with(kNewline)) {
    const size_t headers_end = body.find("\r\n\r\n", at);
    if (headers_end == std::string_view::npos) return NotAForm();
    const size_t begin = headers_end + 4;
    const size_t end = body.find(separator, begin);
    if (end == std::string_view::npos) return NotAForm();
    if (fields->size() == kMaxFormFields) {
      return BadRequest("file", "the form has more than {} fields", kMaxFormFields);
    }
    FormField& field = fields->emplace_back();
    field.name = QuotedParameter(body.substr(at, headers_end - at), "name");
    field.value = body.substr(begin, end - begin);
    at = end + separator.size();
  }
  if (!body.substr(at).starts_with("--")) return NotAForm();
  return {};
}

}  // namespace lapidary
