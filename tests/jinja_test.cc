// The template engine: semantics that golden.json does not reach, clear errors, and limits. The
// bulk of the semantics is compared with jinja2 itself by tools/template_fuzz.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "text/chat_template.h"
#include "text/jinja/template.h"

namespace lapidary::jinja {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

Result<std::vector<TextSegment>> Render(const std::string& source,
                                        const Json& variables = Json::object()) {
  ASSIGN_OR_RETURN(const Template parsed, Template::Parse(source));
  std::vector<Variable> list;
  for (const auto& [name, value] : variables.items()) list.push_back({name, value});
  return parsed.Render(list);
}

std::string Output(const std::string& source, const Json& variables = Json::object()) {
  const auto rendered = Render(source, variables);
  return rendered.ok() ? JoinSegments(*rendered) : "error: " + rendered.error().message;
}

std::string ErrorOf(const std::string& source, const Json& variables = Json::object()) {
  const auto rendered = Render(source, variables);
  return rendered.ok() ? "no error" : rendered.error().message;
}

TEST(Jinja, PythonTextOfValues) {
  EXPECT_EQ(
      Output("{{ x }}",
             {{"x", Json::parse("[1, 2.0, 1e22, 1e-7, null, true, \"it's\", {\"k\": \"\\n\"}]")}}),
      "[1, 2.0, 1e+22, 1e-07, None, True, \"it's\", {'k': '\\n'}]");
  EXPECT_EQ(Output("{{ x }}", {{"x", 18446744073709551615u}}), "18446744073709551615");
  EXPECT_EQ(Output("{{ (1,) }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 7 / 2 }}"), "(1,)-423.5");
}

TEST(Jinja, WhitespaceControlAsTransformersSetsItUp) {
  EXPECT_EQ(Output("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(Output("a \n {%- if true -%} \n b {%- endif %} c"), "ab c");
  EXPECT_EQ(Output("  {%+ if true %}x{% endif +%}\ny"), "  x\ny");
  EXPECT_EQ(Output("{{ 1 }}\n\n"), "1\n");
}

TEST(Jinja, MacrosMayBeCalledBeforeTheirDefinitionInTheText) {
  EXPECT_EQ(Output("{% macro f(n) %}{{ n }}{{ g(n - 1) if n > 0 }}{% endmacro %}"
                   "{% macro g(n) %}{{ f(n) }}{% endmacro %}{{ f(3) }}"),
            "3210");
}

TEST(Jinja, LoopsScopeTheirVariables) {
  EXPECT_EQ(Output("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}"), "1");
  EXPECT_EQ(Output("{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 2 %}{% endfor "
                   "%}{{ ns.x }}"),
            "2");
}

TEST(Jinja, UndefinedPrintsNothingButHasNoAttributes) {
  EXPECT_EQ(Output("[{{ nope }}]"), "[]");
  EXPECT_THAT(ErrorOf("\n{{ nope.x }}"), HasSubstr("line 2: 'nope' is undefined"));
  EXPECT_THAT(ErrorOf("{{ d.a.b }}", {{"d", Json::object()}}), HasSubstr("no attribute 'a'"));
}

TEST(Jinja, UnsupportedConstructsAreNamedWithTheirLine) {
  EXPECT_EQ(ErrorOf("\n{% include 'x' %}"), "line 2: the tag 'include' is not supported");
  EXPECT_EQ(ErrorOf("{{ x | wordwrap }}"), "line 1: the filter 'wordwrap' is not supported");
  EXPECT_EQ(ErrorOf("{{ x is escaped }}"), "line 1: the test 'escaped' is not supported");
  EXPECT_EQ(ErrorOf("{% for x in y recursive %}{% endfor %}"),
            "line 1: 'recursive' loops are not supported");
  EXPECT_EQ(ErrorOf("{% if x %}"), "line 1: a block is not closed; expected 'endif'");
  EXPECT_EQ(ErrorOf("{{ 'abc }}"), "line 1: a string literal is not closed");
  EXPECT_EQ(ErrorOf("{{ (1 }}"), "line 1: unexpected '}', expected ')'");
  EXPECT_EQ(ErrorOf("{{ raise_exception('no ' ~ 'way') }}"), "line 1: no way");
}

TEST(Jinja, WhatATemplateRaisesIsCut) {
  const std::string cut = "line 1: " + std::string(992, 'x') + "...";
  EXPECT_EQ(ErrorOf("{{ raise_exception('x' * 1000000) }}"), cut);
  const std::string deep =
      "{% macro f(n) %}{{ raise_exception('x' * 1000000) if n == 0 else f(n - 1) }}{% endmacro %}"
      "{{ f(40) }}";
  EXPECT_EQ(ErrorOf(deep), cut);
  EXPECT_LE(ErrorOf("{{ " + std::string(100000, 'a') + ".b }}").size(), 1003u);
}

// Provenance.

std::string Marked(const std::string& source, const Json& variables) {
  const auto rendered = Render(source, variables);
  if (!rendered.ok()) return "error: " + rendered.error().message;
  std::string marked;
  for (const TextSegment& segment : *rendered) {
    marked += segment.trusted ? segment.text : "<" + segment.text + ">";
  }
  return marked;
}

TEST(JinjaProvenance, SurvivesEveryTextOperation) {
  const Json variables = {{"u", "ab"}, {"l", {"x", "y"}}, {"d", {{"k", "v"}}}};
  EXPECT_EQ(Marked("{{ 'T' + u + 'T' }}", variables), "T<ab>T");
  EXPECT_EQ(Marked("{{ ('T' + u + 'S')[1:4] }}", variables), "<ab>S");
  EXPECT_EQ(Marked("{{ (' T' ~ u ~ ' ') | trim }}", variables), "T<ab>");
  EXPECT_EQ(Marked("{{ ('t' ~ u) | upper }}{{ u.title() }}", variables), "T<ABAb>");
  EXPECT_EQ(Marked("{{ ('x' ~ u).replace('b', 'T') }}", variables), "x<a>T");
  EXPECT_EQ(Marked("{{ 'tt'.replace('t', u) }}", variables), "<abab>");
  EXPECT_EQ(Marked("{{ ('T,' ~ u).split(',') | join('+') }}", variables), "T+<ab>");
  EXPECT_EQ(Marked("{{ l | join(', ') }}", variables), "<x>, <y>");
  EXPECT_EQ(Marked("{{ l }}{{ d | tojson }}", variables), "['<x>', '<y>']{\"<k>\": \"<v>\"}");
  EXPECT_EQ(Marked("{{ ('T' ~ u) | reverse }}{{ u[::-1] }}", variables), "<ba>T<ba>");
  EXPECT_EQ(Marked("{% set s %}T{{ u }}{% endset %}{{ s }}", variables), "T<ab>");
  EXPECT_EQ(Marked("{% for c in u %}{{ c }},{% endfor %}", variables), "<a>,<b>,");
  EXPECT_EQ(Marked("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", variables), "<k>=<v>");
  EXPECT_EQ(Marked("{{ u * 2 }}{{ 'T' | indent }}", variables), "<abab>T");
}

TEST(JinjaProvenance, GrowingATextLeavesEarlierCopiesAlone) {
  EXPECT_EQ(Marked("{% set a = 'x' ~ u %}{% set b = a ~ '1' %}{% set c = a ~ '2' %}{{ a }}|{{ b "
                   "}}|{{ c }}|{{ b ~ b }}",
                   {{"u", "U"}}),
            "x<U>|x<U>1|x<U>2|x<U>1x<U>1");
}

// Limits: each of these templates would hang, crash or eat all memory.

std::string Repeat(std::string_view text, size_t count) {
  std::string result;
  for (size_t turn = 0; turn < count; ++turn) result += text;
  return result;
}

// CPU time of this thread, which others on the machine do not lengthen much.
double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

TEST(JinjaLimits, HostileTemplatesEndWithAnErrorSoon) {
  const std::pair<std::string, std::string> cases[] = {
      {Repeat("{% for a in range(1000) %}", 5) + Repeat("{% endfor %}", 5), "steps"},
      {"{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}",
       "output is longer"},
      {"{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor "
       "%}",
       "bytes"},
      {"{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ 'y' ~ n.s %}{% "
       "endfor %}",
       "bytes"},
      {"{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor "
       "%}",
       "bytes"},
      {"{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor "
       "%}{{ n.s }}",
       "steps"},
      {"{% set n = namespace(s=[]) %}{% for i in range(9999) %}{% set n.s = [n.s] %}{% endfor %}",
       "nested"},
      {"{% set n = namespace(s={}) %}{% for i in range(9999) %}{% set n.s = {'a': n.s} %}{% endfor "
       "%}",
       "nested"},
      {"{% set n = namespace(s=[1], t=[1]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}"
       "{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.s == n.t }}",
       "steps"},
      {"{{ 'x' * 10 ** 15 }}", "bytes"},
      {"{{ [0] * 10 ** 15 }}", "bytes"},
      {"{{ 'abc' | indent(10 ** 12, true) }}", "bytes"},
      {"{{ 10 ** 10 ** 10 }}", "too large"},
      {"{{ range(10 ** 9) }}", "range"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deep"},
      {"{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}", "nested too deep"},
      {"{{ " + Repeat("(", 100000) + " }}", ""},
      {"{{ " + Repeat("[", 100000) + Repeat("]", 100000) + " }}", "nested"},
      {"{{ " + Repeat("-", 100000) + "1 }}", "nested"},
      {"{{ " + Repeat("not ", 100000) + "1 }}", "nested"},
      {"{{ 1" + Repeat("+1", 100000) + " }}", "chains"},
      {"{{ x" + Repeat(".a", 100000) + " }}", "chains"},
      {"{{ x" + Repeat("|trim", 100000) + " }}", "chains"},
      {"{{ x" + Repeat(" if x else x", 50000) + " }}", "nested"},
      {Repeat("{% if x %}", 50000), "nested"},
      {"{{ '" + std::string(2 << 20, 'x') + "' }}", "bytes"},
      {"{% set s = 'x' * 1000000 %}{% for i in range(100000) %}{{ s | length }}{% endfor %}",
       "steps"},
      {"{% set s = 'x' * 1000000 %}{% for i in range(100000) %}{% set t = s[1:].split('y') %}{% "
       "endfor %}",
       "steps"},
      {"{% set s = 'x' * 1000000 %}{% for i in range(100000) %}{% set t = s.replace('', 'ab') %}{% "
       "endfor %}",
       "steps"},
  };
  const Json much = {{"much", std::vector<int>(20'000, 1)}};  // All limits are at their largest.
  const double begin_of_steps = ThreadSeconds();
  ASSERT_THAT(
      ErrorOf("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
              much),
      HasSubstr("steps"));
  const double all_steps = ThreadSeconds() - begin_of_steps;
  for (const auto& [source, expected] : cases) {
    SCOPED_TRACE(source.substr(0, 100));
    const double begin = ThreadSeconds();
    EXPECT_THAT(ErrorOf(source, much),
                ::testing::AllOf(HasSubstr(expected), ::testing::Ne("no error")));
    // In units of what all the allowed steps of empty loops cost here and now.
    EXPECT_LT((ThreadSeconds() - begin) / all_steps, 10.0);
  }
}

TEST(JinjaLimits, StepsFollowTheSizeOfTheInput) {
  const std::string source =
      "{% for a in range(2000) %}{% for b in range(2000) %}{% endfor %}{% endfor %}x";
  EXPECT_THAT(ErrorOf(source, {{"list", Json::array({1, 2, 3})}}), HasSubstr("steps"));
  EXPECT_EQ(Output(source, {{"list", Json(std::vector<int>(10'000, 1))}}), "x");
}

TEST(JinjaLimits, NamespacesHoldingEachOtherAreFreed) {
  EXPECT_EQ(Output("{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{% set "
                   "a.a = a %}x"),
            "x");
}

TEST(JinjaLimits, DeepInputIsRefused) {
  Json deep = 1;
  for (int level = 0; level < 1000; ++level) deep = Json::array({deep});
  EXPECT_THAT(ErrorOf("{{ x }}", {{"x", deep}}), HasSubstr("nested"));
}

TEST(JinjaLimits, CollectingPiecesInANamespaceIsLinear) {
  const std::string source =
      "{% set n = namespace(s='') %}{% for p in text.split(',') %}{% set n.s = n.s + p %}{% endfor "
      "%}{{ n.s }}";
  EXPECT_EQ(Output(source, {{"text", Repeat("a,", 500000)}}), std::string(500000, 'a'));
}

}  // namespace
}  // namespace lapidary::jinja
