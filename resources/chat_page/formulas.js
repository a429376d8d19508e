// --- formulas: the LaTeX that models write, as MathML ---------------------------------------------------

const LONGEST_FORMULA = 4000;
const DEEPEST_FORMULA = 60;  // groups within each other
const MATH = {'$$': '$$', '\\[': '\\]', '\\(': '\\)', '$': '$'};  // what opens one, and what closes it

// The formula that begins at `at`, and where it ends; null if there is none. As in pandoc, a dollar that a blank follows
// opens nothing, and one that a digit follows closes nothing: prices are no formulas.
function mathAt(text, at) {
  const open = Object.keys(MATH).find((mark) => text.startsWith(mark, at));
  if (!open) return null;
  const begin = at + open.length;
  if (open === '$' && /\s/.test(text[begin] ?? ' ')) return null;
  for (let end = text.indexOf(MATH[open], begin); end >= 0; end = text.indexOf(MATH[open], end + 1)) {
    if (end - begin > LONGEST_FORMULA) return null;
    if (open[0] === '$' && text[end - 1] === '\\') continue;
    if (open === '$' && (/\s/.test(text[end - 1]) || /\d/.test(text[end + 1] ?? ''))) return null;
    const source = text.slice(begin, end).trim();
    if (!source) return null;
    return {node: mathNode(source, open !== '$' && open !== '\\('), end: end + MATH[open].length};
  }
  return null;
}

const ml = (tag, attributes = {}, ...children) => {
  const node = document.createElementNS('http://www.w3.org/1998/Math/MathML', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

function mathNode(source, isBlock) {
  try {
    const formula = new Formula(source);
    const row = formula.row([]);
    if (formula.at < formula.tokens.length) throw new Error('unbalanced');
    return ml('math', {display: isBlock ? 'block' : 'inline', alttext: source}, ...row);
  } catch {
    return el('code', {}, source);  // Not LaTeX that is known here: as it was written.
  }
}

const table = (text) => new Map(text.trim().split(/\s+/).map((pair) => pair.split('=')));
const LETTERS = table(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ
  lambda=λ mu=μ nu=ν xi=ξ pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω
  Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω infty=∞ partial=∂ nabla=∇ hbar=ℏ ell=ℓ
  Re=ℜ Im=ℑ aleph=ℵ emptyset=∅ varnothing=∅ imath=ı jmath=ȷ wp=℘ top=⊤ bot=⊥ angle=∠ degree=° circ=∘ prime=′ dots=… ldots=…
  cdots=⋯ vdots=⋮ ddots=⋱ square=□ blacksquare=■ triangle=△ checkmark=✓ star=⋆ bullet=∙`);
const OPERATORS = table(`times=× cdot=⋅ div=÷ pm=± mp=∓ ast=∗ leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ approx=≈ equiv=≡ sim=∼ simeq=≃ cong=≅
  propto=∝ ll=≪ gg=≫ prec=≺ succ=≻ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ in=∈ notin=∉ ni=∋ cup=∪ cap=∩ setminus=∖ land=∧
  wedge=∧ lor=∨ vee=∨ lnot=¬ neg=¬ forall=∀ exists=∃ nexists=∄ to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒
  Leftarrow=⇐ Leftrightarrow=⇔ iff=⟺ implies=⟹ impliedby=⟸ mapsto=↦ longrightarrow=⟶ longleftarrow=⟵ Longrightarrow=⟹ uparrow=↑
  downarrow=↓ hookrightarrow=↪ rightharpoonup=⇀ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙ perp=⟂ parallel=∥ mid=∣ nmid=∤ vert=| lvert=|
  rvert=| Vert=‖ lVert=‖ rVert=‖ langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ colon=: therefore=∴ because=∵ models=⊨ vdash=⊢
  dashv=⊣ lbrace={ rbrace=} lbrack=[ rbrack=] backslash=\\ asymp=≍ doteq=≐ triangleq=≜ bmod=mod leqslant=⩽ geqslant=⩾ dagger=†`);
const LARGE = table(`sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ bigvee=⋁ bigwedge=⋀`);
const INTEGRALS = table(`int=∫ iint=∬ iiint=∭ oint=∮`);
const LIMITS = new Set('lim limsup liminf max min sup inf argmax argmin det gcd Pr'.split(' '));
const FUNCTIONS = new Set(('sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan log ln lg exp arg deg dim hom ker ' +
  'mod').split(' '));
const SPACES = table(`,=.17em :=.22em ;=.28em !=-.17em quad=1em qquad=2em enspace=.5em thinspace=.17em`);
const ACCENTS = table(`hat=^ widehat=^ bar=¯ overline=¯ vec=→ overrightarrow=→ dot=˙ ddot=¨ tilde=~ widetilde=~ check=ˇ breve=˘
  overbrace=⏞`);
const UNDERS = table(`underline=_ underbrace=⏟`);
const FENCES = {matrix: ['', ''], pmatrix: ['(', ')'], bmatrix: ['[', ']'], Bmatrix: ['{', '}'], vmatrix: ['|', '|'],
                Vmatrix: ['‖', '‖'], cases: ['{', ''], rcases: ['', '}'], smallmatrix: ['', '']};
// Where the letters of an alphabet begin, and those that came into Unicode before the others.
const ALPHABETS = {
  mathbf: [0x1D400, 0x1D41A, {}, 0x1D7CE], boldsymbol: [0x1D468, 0x1D482, {}, 0x1D7CE], bm: [0x1D468, 0x1D482, {}, 0x1D7CE],
  mathbb: [0x1D538, 0x1D552, {C: 'ℂ', H: 'ℍ', N: 'ℕ', P: 'ℙ', Q: 'ℚ', R: 'ℝ', Z: 'ℤ'}, 0x1D7D8],
  mathcal: [0x1D49C, 0x1D4B6, {B: 'ℬ', E: 'ℰ', F: 'ℱ', H: 'ℋ', I: 'ℐ', L: 'ℒ', M: 'ℳ', R: 'ℛ', e: 'ℯ', g: 'ℊ', o: 'ℴ'}, 0],
  mathscr: [0x1D49C, 0x1D4B6, {B: 'ℬ', E: 'ℰ', F: 'ℱ', H: 'ℋ', I: 'ℐ', L: 'ℒ', M: 'ℳ', R: 'ℛ', e: 'ℯ', g: 'ℊ', o: 'ℴ'}, 0],
  mathfrak: [0x1D504, 0x1D51E, {C: 'ℭ', H: 'ℌ', I: 'ℑ', R: 'ℜ', Z: 'ℨ'}, 0],
  mathsf: [0x1D5A0, 0x1D5BA, {}, 0x1D7E2], mathtt: [0x1D670, 0x1D68A, {}, 0x1D7F6],
};
const inAlphabet = (text, [upper, lower, others, digits]) => [...text].map((char) => {
  if (others[char]) return others[char];
  if (/[A-Z]/.test(char)) return String.fromCodePoint(upper + char.charCodeAt(0) - 65);
  if (/[a-z]/.test(char)) return String.fromCodePoint(lower + char.charCodeAt(0) - 97);
  return digits && /\d/.test(char) ? String.fromCodePoint(digits + Number(char)) : char;
}).join('');

// Reads a formula. What it does not know it shows as it is written; what is unbalanced throws.
class Formula {
  constructor(source) {
    this.source = source;
    this.tokens = [...source.matchAll(/\\(?:[A-Za-z]+\*?|[^])|\d+(?:\.\d+)?|\s+|[^]/gu)];
    this.at = 0;
    this.depth = 0;
  }

  peek() { return this.tokens[this.at]?.[0]; }
  next() {
    if (this.at === this.tokens.length) throw new Error('it ends too early');
    return this.tokens[this.at++][0];
  }
  skipBlanks() { while (this.peek() && !this.peek().trim()) ++this.at; }
  take(token) {
    this.skipBlanks();
    if (this.peek() !== token) return false;
    ++this.at;
    return true;
  }

  // Nodes up to one of the tokens `ends`, which stays.
  row(ends) {
    if (++this.depth > DEEPEST_FORMULA) throw new Error('too deep');
    const nodes = [];
    for (this.skipBlanks(); this.peek() !== undefined && !ends.includes(this.peek()); this.skipBlanks()) {
      if (this.peek() === '}' || this.peek() === '\\right' || this.peek() === '\\end') throw new Error('unbalanced');
      const node = this.scripted();
      if (node) nodes.push(node);
    }
    --this.depth;
    return nodes;
  }

  group(nodes) { return nodes.length === 1 ? nodes[0] : ml('mrow', {}, ...nodes); }

  // {...}, or the next thing alone.
  argument() {
    this.skipBlanks();
    if (this.peek() !== '{') return this.atom() ?? ml('mrow');
    ++this.at;
    const nodes = this.row(['}']);
    this.next();
    return this.group(nodes);
  }

  // {...} as it is written.
  text() {
    if (!this.take('{')) return this.next();
    const begin = this.at;
    for (let open = 1; open > 0;) {
      const token = this.next();
      open += token === '{' ? 1 : token === '}' ? -1 : 0;
    }
    return this.tokens.slice(begin, this.at - 1).map(([token]) => token).join('');
  }

  scripted() {
    const base = this.atom();
    let under = null;
    let over = null;
    for (;;) {
      this.skipBlanks();
      if (!under && this.peek() === '_') {
        ++this.at;
        under = this.argument();
      } else if (!over && this.peek() === '^') {
        ++this.at;
        over = this.argument();
      } else if (!over && this.peek() === "'") {
        let primes = '';
        while (this.peek() === "'") {
          primes += '′';
          ++this.at;
        }
        over = ml('mo', {}, primes);
      } else if (this.peek() === '\\limits' || this.peek() === '\\nolimits') {
        ++this.at;
      } else {
        break;
      }
    }
    if (!under && !over) return base;
    const [below, above, both] = base?.limits ? ['munder', 'mover', 'munderover'] : ['msub', 'msup', 'msubsup'];
    const node = under && over ? ml(both, {}, base ?? ml('mrow'), under, over)
                               : ml(under ? below : above, {}, base ?? ml('mrow'), under ?? over);
    return node;
  }

  // A bracket behind \left, \right or \big.
  fence() {
    this.skipBlanks();
    const token = this.next();
    const text = token === '.' ? '' : token[0] === '\\' ? OPERATORS.get(token.slice(1)) ?? token.replace('\\|', '‖').replace(/^\\/, '')
                                                        : token;
    return ml('mo', {fence: 'true', stretchy: 'true'}, text);
  }

  atom() {
    this.skipBlanks();
    const token = this.peek();
    if (token === '^' || token === '_') return null;  // on nothing
    if (token === '{') return this.argument();
    this.next();
    if (token[0] === '\\') return this.command(token.slice(1));
    if (/^\d/.test(token)) return ml('mn', {}, token);
    if (/^\p{L}$/u.test(token)) return ml('mi', {}, token);
    if (token === '~') return ml('mspace', {width: '.28em'});
    if (token === '&') return null;
    const isFence = '()[]|'.includes(token);
    return ml('mo', isFence ? {stretchy: 'false'} : {}, token === '-' ? '−' : token === '*' ? '∗' : token);
  }

  command(name) {
    if (LETTERS.has(name)) return ml('mi', {}, LETTERS.get(name));
    if (OPERATORS.has(name)) return ml('mo', {stretchy: 'false'}, OPERATORS.get(name));
    if (SPACES.has(name)) return ml('mspace', {width: SPACES.get(name)});
    if (LARGE.has(name) || LIMITS.has(name)) {
      const isSign = LARGE.has(name);
      return Object.assign(ml('mo', {movablelimits: 'true', ...(isSign ? {largeop: 'true'} : {})},
                              isSign ? LARGE.get(name) : name.replace(/^arg(?=m)/, 'arg\u2009')), {limits: true});
    }
    if (INTEGRALS.has(name)) return ml('mo', {largeop: 'true'}, INTEGRALS.get(name));
    if (FUNCTIONS.has(name)) return ml('mrow', {}, ml('mi', {}, name), ml('mspace', {width: '.17em'}));
    if (ACCENTS.has(name) || UNDERS.has(name)) {
      const sign = ml('mo', {stretchy: /^(?:over|under|wide)/.test(name)}, ACCENTS.get(name) ?? UNDERS.get(name));
      const node = ml(ACCENTS.has(name) ? 'mover' : 'munder', {accent: 'true'}, this.argument(), sign);
      return Object.assign(node, {limits: name.endsWith('brace')});
    }
    if (Object.hasOwn(ALPHABETS, name)) {
      const text = this.text();
      const letter = LETTERS.get(text.replace(/^\\/, ''));
      if (/[\\{}^_]/.test(text) && !letter) return this.within(text);
      return ml('mi', {}, letter ?? inAlphabet(text, ALPHABETS[name]));
    }
    switch (name) {
      case 'frac': case 'dfrac': case 'tfrac': case 'cfrac':
        return ml('mfrac', {}, this.argument(), this.argument());
      case 'binom': case 'dbinom': case 'tbinom':
        return ml('mrow', {}, ml('mo', {}, '('), ml('mfrac', {linethickness: '0'}, this.argument(), this.argument()), ml('mo', {}, ')'));
      case 'sqrt': {
        if (!this.take('[')) return ml('msqrt', {}, this.argument());
        const degree = this.group(this.row([']']));
        this.next();
        return ml('mroot', {}, this.argument(), degree);
      }
      case 'text': case 'textrm': case 'textbf': case 'textit': case 'mbox': case 'texttt':
        return ml('mtext', {}, this.text().replaceAll('\\', '').replace(/^\s|\s$/g, '\u00a0'));
      case 'mathrm': case 'operatorname': case 'operatorname*': case 'mathit': {
        const text = this.text();
        return /[\\{}^_]/.test(text) ? this.within(text) : ml('mi', name === 'mathit' ? {} : {mathvariant: 'normal'}, text);
      }
      case 'left': {
        const open = this.fence();
        const nodes = this.row(['\\right']);
        this.next();
        return ml('mrow', {}, open, ...nodes, this.fence());
      }
      case 'middle': case 'big': case 'Big': case 'bigg': case 'Bigg': case 'bigl': case 'bigr': case 'Bigl': case 'Bigr':
      case 'biggl': case 'biggr': case 'bigm':
        return this.fence();
      case 'begin':
        return this.environment(this.text());
      case 'boxed': case 'fbox':
        return ml('mrow', {class: 'boxed'}, this.argument());
      case 'overset': case 'stackrel': {
        const above = this.argument();
        return ml('mover', {}, this.argument(), above);
      }
      case 'underset': {
        const below = this.argument();
        return ml('munder', {}, this.argument(), below);
      }
      case 'xrightarrow': return ml('mover', {}, ml('mo', {}, '⟶'), this.argument());
      case 'pmod': return ml('mrow', {}, ml('mtext', {}, '\u2003(mod\u00a0'), this.argument(), ml('mtext', {}, ')'));
      case 'tag': return ml('mtext', {}, '\u2003(' + this.text() + ')');
      case 'phantom': case 'hphantom': case 'vphantom': return ml('mphantom', {}, this.argument());
      case 'color': case 'label': this.text(); return null;
      case 'displaystyle': case 'textstyle': case 'scriptstyle': case 'nonumber': case 'hline': case 'notag': return null;
      case 'mathop': case 'mathbin': case 'mathrel': case 'mathord': return Object.assign(this.argument(), {limits: name === 'mathop'});
      case 'not': {
        const node = this.argument();
        node.append('\u0338');
        return node;
      }
      case '\\': return ml('mspace', {width: '1em'});  // a new line where there is no table
      case '|': return ml('mo', {stretchy: 'false'}, '‖');
      case ' ': return ml('mspace', {width: '.28em'});
    }
    if (/^[^A-Za-z]$/.test(name)) return ml('mo', {stretchy: 'false'}, name);  // \{ \% \$
    return ml('mtext', {}, '\\' + name);
  }

  // A text that holds commands, as a formula of its own.
  within(text) {
    const inner = new Formula(text);
    inner.depth = this.depth;
    return this.group(inner.row([]));
  }

  environment(name) {
    if (name.startsWith('array')) this.text();  // how its columns are set
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(ml('mtd', {}, ...this.row(['&', '\\\\', '\\end'])));
      const end = this.next();
      if (end === '\\\\') rows.push([]);
      if (end === '\\end') break;
    }
    if (this.text() !== name) throw new Error('unbalanced');
    if (rows.at(-1).every((cell) => !cell.firstChild)) rows.pop();
    const isAligned = /^(?:align|split|eqn)/.test(name);
    const node = ml('mtable', isAligned ? {class: 'aligned'} : {}, ...rows.map((cells) => ml('mtr', {}, ...cells)));
    const fences = FENCES[name];
    if (!fences) return node;
    const [open, close] = fences.map((text) => ml('mo', {fence: 'true', stretchy: 'true'}, text));
    return ml('mrow', {}, open, node, close);
  }
}
