// --- colours of code ----------------------------------------------------------------------------------

// Comments, strings, numbers and the words of a language: what the eye looks for. No grammar is parsed.
const FAMILIES = [
  {names: 'python py bash sh shell zsh console yaml yml toml ini ruby rb perl r julia jl dockerfile makefile make cmake ' +
          'elixir nix graphql', comment: '#[^\\n]*'},
  {names: 'c h cpp c++ cc cuda cu java javascript js jsx typescript ts tsx go rust rs kotlin kt swift csharp c# cs scala ' +
          'dart php zig json jsonc proto glsl groovy solidity', comment: '//[^\\n]*|/\\*[^]*?(?:\\*/|$)'},
  {names: 'css scss less', comment: '/\\*[^]*?(?:\\*/|$)'},
  {names: 'sql postgresql mysql sqlite lua haskell hs ada', comment: '--[^\\n]*|/\\*[^]*?(?:\\*/|$)', ignoresCase: true},
  {names: 'html xml svg vue', comment: '<!--[^]*?(?:-->|$)'},
  {names: 'lisp scheme clojure asm', comment: ';[^\\n]*'},
  {names: 'latex tex matlab octave erlang', comment: '%[^\\n]*'},
];
const WORDS = new Set(('abstract and as assert async await begin bool boolean break case catch char class const constexpr ' +
  'constructor continue crate def default defer del delete do done double elif else elsif end enum esac except export ' +
  'extends extern false fi final finally float fn for foreach from func function global goto if impl implements import ' +
  'in include inline instanceof int interface is lambda let local long loop match mod module mut namespace new nil none ' +
  'not null nullptr of operator or override package pass private protected pub public raise readonly ref return self ' +
  'short sizeof static string struct super switch template then this throw throws trait true try type typedef typename ' +
  'typeof undefined union unless unsafe unsigned until use using var virtual void volatile when where while with yield ' +
  'None True False ' +
  'select insert update delete into values set join inner outer left right full on group by order having limit offset ' +
  'create table drop alter view index primary key foreign references distinct exists between like union all').split(' '));
const QUERY_WORDS = new Set('select insert update into values set join inner outer left right full on group by order having limit offset create table drop alter view index primary key foreign references distinct exists between like all'.split(' '));
const LONGEST_CODE = 50000;  // characters that are coloured

function highlight(code, language, parent) {
  const family = FAMILIES.find(({names}) => names.split(' ').includes(language.toLowerCase()));
  if (!family || code.length > LONGEST_CODE) {
    parent.append(code);
    return parent;
  }
  const isQuery = Boolean(family.ignoresCase);
  const strings = '"""[^]*?(?:"""|$)|\'\'\'[^]*?(?:\'\'\'|$)|"(?:\\\\.|[^"\\\\\\n])*"?|' +
                  "'(?:\\\\.|[^'\\\\\\n])*'|`(?:\\\\.|[^`\\\\])*`?";
  const pattern = new RegExp(`(${family.comment})|(${strings})|(\\b\\d[\\w.]*)|([A-Za-z_]\\w*)`, 'g');
  let done = 0;
  for (const found of code.matchAll(pattern)) {
    const [text, comment, string, number, word] = found;
    const key = isQuery ? word?.toLowerCase() : word;
    const isWord = word && WORDS.has(key) && (isQuery || !QUERY_WORDS.has(key));
    const kind = comment ? 'comment' : string ? 'string' : number ? 'number' : isWord ? 'word' : '';
    if (!kind) continue;
    parent.append(code.slice(done, found.index), el('span', {class: kind}, text));
    done = found.index + text.length;
  }
  parent.append(code.slice(done));
  return parent;
}
