// What the API says, drawn. The token lives in this page's memory only. Every
// text is set as text, never as markup: names and messages come from users and
// containers.

const $ = id => document.getElementById(id)
const waiting = new Set(['Submitted', 'Queued', 'Scheduling', 'Preparing'])
let token = ''
let wake = () => {}

// el makes an element with a class, a text or children, and attributes.
function el(tag, cls, content, attributes = {}) {
  const e = document.createElement(tag)
  if (cls) e.className = cls
  if (Array.isArray(content)) e.append(...content)
  else if (content != null) e.textContent = content
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value)
  return e
}

// show replaces an element's children if they have changed, so that focus,
// selections and screen readers are left alone by a refresh without news.
function show(parent, children) {
  const fresh = el('div', '', children)
  if (parent.innerHTML !== fresh.innerHTML) parent.replaceChildren(...children)
}

const seconds = ms => ms == null ? '–' : (ms / 1000).toFixed(3) + ' s'
const megabytes = n => (n / 1e6).toFixed(1) + ' MB'
const percent = (part, whole) => whole > 0 ? Math.min(100, 100 * part / whole).toFixed(2) + '%' : '0%'
const selected = () => decodeURIComponent(location.hash.slice(1))

async function get(path) {
  const answer = await fetch(path, { headers: token ? { Authorization: 'Bearer ' + token } : {}, signal: AbortSignal.timeout(25000) })
  $('login').hidden = answer.status !== 401
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({}))
    throw Object.assign(new Error(problem.detail || answer.statusText), { status: answer.status })
  }
  return answer.json()
}

// environments reads all pages of the list.
async function environments() {
  const all = []
  for (let cursor = ''; ;) {
    const page = await get('v1/environments?limit=500&cursor=' + encodeURIComponent(cursor))
    all.push(...page.items)
    if (!page.nextCursor) return all
    cursor = page.nextCursor
  }
}

// bar is one row of the waterfall: a name, a duration, and where it lies.
function bar(row, total, cls) {
  const track = el('div', 'track')
  if (!row.skipped) {
    const b = el('div', 'bar')
    b.style.left = percent(row.startMs, total)
    b.style.width = percent(row.durationMs, total)
    track.append(b)
  }
  track.title = row.skipped ? row.id + ': not part of this start' : `${row.id}: from ${seconds(row.startMs)} to ${seconds(row.startMs + row.durationMs)}`
  return el('div', `row ${cls}${row.open ? ' open' : ''}`, [el('span', '', row.id), el('span', 'num', row.skipped ? '–' : seconds(row.durationMs)), track])
}

// axis labels the waterfall at round seconds, about five of them.
function axis(total) {
  const rough = total / 5
  const power = 10 ** Math.floor(Math.log10(rough))
  const step = power * [1, 2, 5, 10].find(n => n * power >= rough)
  const track = el('div', 'track')
  for (let at = 0; at <= total; at += step) {
    const tick = el('span', 'tick', at / 1000 + ' s')
    tick.style.left = percent(at, total)
    track.append(tick)
  }
  return el('div', 'row axis', [el('span'), el('span'), track], { 'aria-hidden': 'true' })
}

function waterfall(t) {
  const total = Math.max(t.totalMs, 1)
  const out = [axis(total)]
  for (const stage of t.stages) out.push(bar(stage, total, stage.id === 'unattributed' ? 'gap' : ''))
  for (const lane of t.lanes) {
    out.push(bar(lane, total, 'lane'))
    for (const level of lane.levels || []) out.push(bar(level, total, 'lane level'))
    if (!lane.succeeded && lane.lastError) out.push(el('p', 'bad', `${lane.id}, attempt ${lane.attempts}: ${lane.lastError}`))
  }
  const facts = [`unattributed ${seconds(t.unattributedMs)}`]
  if (t.image) facts.push(`${megabytes(t.image.bytesFetched)} fetched in ${t.image.requests} requests${t.image.lazy ? ', lazily' : ''}`)
  if (t.imprecise) facts.push('imprecise: the launcher was restarted meanwhile')
  out.push(el('p', 'soft', facts.join(' · ')))
  return out
}

// explanation says why an environment waits, card by card.
function explanation(x) {
  const out = [el('h3', '', 'Why it waits'), el('p', '', x.summary)]
  const rows = []
  for (const node of x.nodes || []) {
    const because = reasons => (reasons || []).map(r => r.message).join('; ')
    if (node.reasons?.length) rows.push(el('tr', '', [el('td', '', node.name), el('td'), el('td', 'break', because(node.reasons))]))
    for (const d of node.devices || []) {
      rows.push(el('tr', '', [el('td', '', node.name), el('td', 'break', `${d.index} ${d.model} ${d.uuid}`), el('td', 'break', d.fits ? 'fits' : because(d.reasons))]))
    }
  }
  if (rows.length) {
    const head = el('tr', '', ['Node', 'Card', 'What it lacks'].map(text => el('th', '', text, { scope: 'col' })))
    out.push(el('div', 'scroll', [el('table', '', [el('thead', '', [head]), el('tbody', '', rows)])]))
  }
  for (const hint of x.wouldFitIf || []) out.push(el('p', '', 'Would fit: ' + hint))
  return out
}

async function detail(all) {
  const e = all.find(one => one.id === selected())
  if (!e) return show($('detail'), [])
  const t = await get(`v1/environments/${e.id}/timeline`)
  const heading = t.timeToUsableMs == null ? `not usable after ${seconds(t.totalMs)}` : `usable after ${seconds(t.timeToUsableMs)}`
  const out = [el('h2', '', `${e.name}: ${heading}`)]
  if (e.status.phase === 'Usable') out.push(el('p', '', [el('code', '', `firstlight env ssh ${e.name}`)]))
  if (e.status.placement) {
    const cards = (e.status.placement.devices || []).map(d => `${d.memoryMiB} MiB and ${d.cores} % of ${d.uuid}`)
    out.push(el('p', 'soft', [`on ${e.status.placement.node}`, ...cards].join(' · ')))
  }
  out.push(...waterfall(t))
  if (waiting.has(e.status.phase) && !e.status.placement) {
    try {
      out.push(...explanation(await get(`v1/environments/${e.id}/explain`)))
    } catch (err) {
      out.push(el('p', 'bad', 'no explanation: ' + err.message))
    }
  }
  show($('detail'), out)
}

function list(all) {
  const select = id => { location.hash = encodeURIComponent(id) }
  const focused = document.activeElement?.dataset?.id
  show($('list'), all.map(e => {
    const s = e.status
    const cells = [
      el('td', '', e.name), el('td', s.phase === 'Failed' ? 'bad' : '', s.stage ? `${s.phase} (${s.stage})` : s.phase), el('td', 'num', seconds(s.timeToUsableMs)),
      el('td', '', e.cluster), el('td', 'break', e.spec.image), el('td', 'break', s.message || ''),
    ]
    return el('tr', '', cells, { 'data-id': e.id, tabindex: 0, 'aria-selected': e.id === selected() })
  }))
  for (const row of $('list').rows) {
    row.onclick = () => select(row.dataset.id)
    row.onkeydown = event => { if (event.key === 'Enter') select(row.dataset.id) }
    if (row.dataset.id === focused) row.focus()
  }
  $('none').hidden = all.length > 0
  const usable = all.filter(e => e.status.phase === 'Usable').length
  $('state').textContent = all.length ? `${usable} of ${all.length} usable` : ''
}

function card(node, d) {
  const track = el('div', 'track')
  if (d.memoryUsedMiB > 0) {
    const used = el('div', 'bar')
    used.style.left = 0
    used.style.width = percent(d.memoryUsedMiB, d.memoryMiB)
    track.append(used)
  }
  const text = `${node.name} · ${d.index} ${d.model}${d.healthy ? '' : ' · unhealthy'}`
  return el('div', 'card', [
    el('div', d.healthy ? '' : 'bad', text), track,
    el('div', 'soft', `${d.memoryUsedMiB} of ${d.memoryMiB} MiB, ${d.coresUsed} of ${d.cores} % used`),
  ], { title: d.uuid })
}

async function clusters() {
  const out = []
  for (const c of (await get('v1/clusters')).items) {
    if (!c.up) {
      out.push(el('div', 'card bad', `${c.name}: ${c.message || 'not seen yet'}`))
      continue
    }
    try {
      const { nodes } = await get(`v1/clusters/${encodeURIComponent(c.name)}/capacity`)
      for (const node of nodes) out.push(...(node.devices || []).map(d => card(node, d)))
    } catch (err) {
      out.push(el('div', 'card bad', `${c.name}: ${err.message}`))
    }
  }
  show($('clusters'), out)
}

async function refresh(tick) {
  try {
    const all = await environments()
    $('main').hidden = false
    list(all)
    await detail(all)
    if (tick % 5 === 0) await clusters()
    $('trouble').hidden = true
  } catch (err) {
    $('trouble').hidden = false
    $('trouble').textContent = err instanceof TypeError || err.name === 'TimeoutError' ? 'the launcher does not answer' : err.message
  }
}

$('login').onsubmit = event => {
  event.preventDefault()
  token = $('token').value.trim()
  wake()
}
onhashchange = () => wake()
for (let tick = 0; ; tick++) {
  if (!document.hidden) await refresh(tick)
  await new Promise(resolve => { wake = resolve; setTimeout(resolve, 1000) })
}
