// --- Markdown, the part of it that models write -------------------------------------------------------

const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^\s`]*)/;
const FORMULA = /^ {0,3}(\$\$|\\\[)/;
const HEADING = /^ {0,3}#{1,6} +(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const ITEM = /^( *)(?:[-*+]|(\d{1,9})[.)])( +|$)/;
const TABLE_RULE = /^\|?( *:?-+:? *\|)+( *:?-+:? *)?$/;
const DEEPEST = 12;  // lists and quotes within each other

const indentOf = (line) => line.length - line.trimStart().length;
const isBlank = (line) => !line.trim();
const cellsOf = (line) => line.trim().replace(/^\||\|$/g, '').split('|').map((cell) => cell.trim());

// Lists of {source, render}: one per block, so that a growing answer renders only its last block anew.
function blocksOf(text, depth = 0) {
  const lines = text.split('\n');
  const blocks = [];
  const add = (begin, end, render) => blocks.push({source: lines.slice(begin, end).join('\n'), render});
  const startsTable = (at) => lines[at].includes('|') && TABLE_RULE.test((lines[at + 1] ?? '').trim());
  const startsBlock = (at) => FENCE.test(lines[at]) || FORMULA.test(lines[at]) || HEADING.test(lines[at]) || RULE.test(lines[at]) ||
    /^ {0,3}>/.test(lines[at]) || (ITEM.test(lines[at]) && depth < DEEPEST) ||
    startsTable(at);
  for (let at = 0; at < lines.length;) {
    const begin = at;
    const line = lines[at];
    let match;
    if (isBlank(line)) {
      ++at;
    } else if ((match = FENCE.exec(line))) {
      const [, marks, language] = match;
      const indent = indentOf(line);
      const closes = (row) => row.trim().startsWith(marks) && !row.trim().replaceAll(marks[0], '');
      do ++at; while (at < lines.length && !closes(lines[at]));
      const code = lines.slice(begin + 1, at).map((row) => row.slice(Math.min(indent, indentOf(row)))).join('\n');
      add(begin, ++at, () => fenceNode(code, language));
    } else if ((match = FORMULA.exec(line)) && formulaEnd(lines, at, match[1]) >= 0) {
      at = formulaEnd(lines, at, match[1]) + 1;
      const paragraph = lines.slice(begin, at).join('\n').trim();
      add(begin, at, () => inline(paragraph, el('p')));
    } else if ((match = HEADING.exec(line))) {
      const heading = match[1].trimEnd().replace(/ #+$/, '');
      add(begin, ++at, () => inline(heading, el('h3')));
    } else if (RULE.test(line)) {
      add(begin, ++at, () => el('hr'));
    } else if (/^ {0,3}>/.test(line) && depth < DEEPEST) {
      while (at < lines.length && /^ {0,3}>/.test(lines[at])) ++at;
      const inner = lines.slice(begin, at).map((row) => row.replace(/^ {0,3}> ?/, '')).join('\n');
      add(begin, at, () => renderBlocks(el('blockquote'), inner, depth + 1));
    } else if (ITEM.test(line) && depth < DEEPEST) {
      at = listEnd(lines, at);
      const rows = lines.slice(begin, at);
      add(begin, at, () => listNode(rows, depth));
    } else if (startsTable(at)) {
      while (at < lines.length && lines[at].includes('|')) ++at;
      const rows = lines.slice(begin, at);
      add(begin, at, () => tableNode(rows));
    } else {
      do ++at; while (at < lines.length && !isBlank(lines[at]) && !startsBlock(at));
      const paragraph = lines.slice(begin, at).join('\n').trim();
      add(begin, at, () => inline(paragraph, el('p')));
    }
  }
  return blocks;
}

// The line that ends the formula which begins the line `begin`; -1 if none does.
function formulaEnd(lines, begin, open) {
  const closes = (line, from) => line.indexOf(MATH[open], from) >= 0;
  if (closes(lines[begin], lines[begin].indexOf(open) + open.length)) return begin;
  for (let at = begin + 1; at < lines.length; ++at) if (closes(lines[at], 0)) return at;
  return -1;
}

function listEnd(lines, begin) {
  const indent = indentOf(lines[begin]);
  const isOrdered = Boolean(ITEM.exec(lines[begin])[2]);
  const continues = (line) => {
    const item = ITEM.exec(line);
    return indentOf(line) > indent || (item && indentOf(line) === indent && Boolean(item[2]) === isOrdered);
  };
  let at = begin + 1;
  while (at < lines.length) {
    let next = at;
    while (next < lines.length && isBlank(lines[next])) ++next;
    if (next === lines.length || !continues(lines[next])) break;
    at = next + 1;
  }
  return at;
}

function listNode(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const list = el(first[2] ? 'ol' : 'ul', first[2] ? {start: first[2]} : {});
  for (let at = 0; at < lines.length;) {
    const begin = at;
    const marker = ITEM.exec(lines[at])[0];
    do ++at; while (at < lines.length && !(ITEM.test(lines[at]) && indentOf(lines[at]) <= indentOf(lines[0])));
    const rows = lines.slice(begin, at).map((row, idx) =>
      row.slice(idx ? Math.min(marker.length, indentOf(row)) : marker.length));
    const item = el('li');
    const task = /^\[([ xX])\] /.exec(rows[0]);
    if (task) {
      rows[0] = rows[0].slice(task[0].length);
      item.className = 'task';
      const isDone = task[1] !== ' ';
      item.append(el('input', {type: 'checkbox', disabled: true, checked: isDone, 'aria-label': isDone ? 'Done' : 'Not done'}));
    }
    const blocks = blocksOf(rows.join('\n'), depth + 1);
    for (const [idx, block] of blocks.entries()) {
      const node = block.render();
      item.append(...(idx === 0 && node.localName === 'p' ? node.childNodes : [node]));
    }
    list.append(item);
  }
  return list;
}

function tableNode(rows) {
  const [head, rule, ...body] = rows;
  const sides = cellsOf(rule).map((cell) => (!cell.endsWith(':') ? '' : cell.startsWith(':') ? 'center' : 'right'));
  const row = (line, tag) => el('tr', {}, ...cellsOf(line).map((cell, idx) =>
    inline(cell, el(tag, sides[idx] ? {class: sides[idx]} : {}))));
  const table = el('table', {}, el('thead', {}, row(head, 'th')), el('tbody', {}, ...body.map((line) => row(line, 'td'))));
  return el('div', {class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Table'}, table);
}

function fenceNode(code, language) {
  const button = (word, onclick) =>
    el('button', {type: 'button', 'aria-label': `${word} the ${language ? language + ' ' : ''}code`, onclick}, word);
  const bar = el('div', {class: 'fence-bar'}, el('span', {}, language));
  if (PREVIEWED.has(language.toLowerCase())) bar.append(button('Preview', () => openPreview(code)));
  bar.append(button('Copy', () => copy(code)));
  return el('div', {class: 'fence'}, bar, el('pre', {tabindex: 0}, highlight(code, language, el('code'))));
}

// [words](address), or the address alone. Only such as open a page or a letter: a model may write any other.
const LINK = /\[([^[\]\n]{1,300})\]\(((?:https?:\/\/|mailto:)[^\s<>"()]{1,2000})\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`()[\]{}]{1,2000}/y;

// The link that begins at `at`, and where it ends; null if there is none.
function linkAt(text, at) {
  if (text[at] !== '[' && (text[at] !== 'h' || /[\p{L}\p{N}]/u.test(text[at - 1] ?? ''))) return null;
  const pattern = text[at] === '[' ? LINK : ADDRESS;
  pattern.lastIndex = at;
  const found = pattern.exec(text);
  if (!found) return null;
  const address = found[2] ?? found[0].replace(/[.,;:!?*_]+$/, '');
  const node = el('a', {href: address, title: address, target: '_blank', rel: 'noopener noreferrer'});
  return {node, words: found[1] ?? address, end: at + (found[2] ? found[0] : address).length};
}

const tagOf = (mark) => (mark === '~~' ? 's' : mark.length === 2 ? 'strong' : 'em');

// Appends `text` to `parent`: `code`, **bold**, *italic*, ~~struck~~, links, formulas; everything else as it is.
function inline(text, parent, depth = 0) {
  const hopeless = new Set();  // marks that nothing closes any more
  let plain = '';
  const flush = () => { if (plain) parent.append(plain); plain = ''; };
  for (let at = 0; at < text.length;) {
    const mark = /^(?:`+|\*\*|__|~~|[*_])/.exec(text.slice(at, at + 8))?.[0];
    const formula = mark ? null : mathAt(text, at);
    if (formula) {
      flush();
      parent.append(formula.node);
      at = formula.end;
      continue;
    }
    const link = mark ? null : linkAt(text, at);
    if (link) {
      flush();
      link.node.append(link.words);
      parent.append(link.node);
      at = link.end;
      continue;
    }
    if (!mark) {
      if (text[at] === '\\' && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? '')) ++at;
      plain += text[at++];
      continue;
    }
    const end = depth < DEEPEST && !hopeless.has(mark) ? closingMark(text, at, mark) : -1;
    if (end < 0) {
      if (end === -1) hopeless.add(mark);
      plain += mark;
      at += mark.length;
      continue;
    }
    flush();
    const inner = text.slice(at + mark.length, end);
    if (mark[0] === '`') parent.append(el('code', {}, inner.replace(/^ (.*\S.*) $/s, '$1')));
    else parent.append(inline(inner, el(tagOf(mark)), depth + 1));
    at = end + mark.length;
  }
  flush();
  return parent;
}

// Where what `mark` opened at `at` closes; -1 if nowhere in the text, -2 if `mark` opens nothing here.
function closingMark(text, at, mark) {
  const isWord = (char) => /[\p{L}\p{N}]/u.test(char ?? '');
  const isSpace = (char) => char === undefined || /\s/.test(char);
  const begin = at + mark.length;
  if (mark[0] !== '`' && (isSpace(text[begin]) || (mark[0] === '_' && isWord(text[at - 1])))) return -2;
  for (let end = text.indexOf(mark, begin + 1); end >= 0; end = text.indexOf(mark, end + 1)) {
    const before = text[end - 1];
    const after = text[end + mark.length];
    if (after === mark[0] || (mark.length === 1 && before === mark)) continue;  // part of a longer mark
    if (mark[0] === '`' ? before !== '`' : !isSpace(before) && !(mark[0] === '_' && isWord(after))) return end;
  }
  return -1;
}

function renderBlocks(parent, text, depth = 0) {
  const blocks = blocksOf(text, depth);
  const old = parent.sources ?? [];
  let same = 0;
  while (same < blocks.length && blocks[same].source === old[same]) ++same;
  while (parent.childNodes.length > same) parent.lastChild.remove();
  parent.append(...blocks.slice(same).map((block) => block.render()));
  parent.sources = blocks.map((block) => block.source);
  return parent;
}
