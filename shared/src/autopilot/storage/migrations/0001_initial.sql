-- The whole schema: configuration with composite foreign keys, history without, queues slim and deleted on finish.

-- The smallest id that an application could have made at a time: bounds a scan of history by its primary key.
CREATE FUNCTION uuid7_floor(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- ---------------------------------------------------------------- people, workspaces, tokens

CREATE TABLE workspace (
    id uuid NOT NULL,
    slug text NOT NULL,
    name text NOT NULL,
    issue_prefix text NOT NULL,
    attribution_policy text NOT NULL DEFAULT 'owner_fallback',
    created_at timestamptz NOT NULL DEFAULT now(),
    rev bigint NOT NULL DEFAULT 1,
    CONSTRAINT workspace_pk PRIMARY KEY (id),
    CONSTRAINT workspace_slug_unique UNIQUE (slug),
    CONSTRAINT workspace_slug_form CHECK (slug ~ '^[a-z0-9](-?[a-z0-9])*$' AND length(slug) <= 63),
    CONSTRAINT workspace_name_length CHECK (length(name) BETWEEN 1 AND 100),
    CONSTRAINT workspace_issue_prefix_form CHECK (issue_prefix ~ '^[A-Z][A-Z0-9]{0,9}$'),
    CONSTRAINT workspace_attribution_policy_known CHECK (attribution_policy IN ('owner_fallback', 'block'))
);

-- Never a foreign-key target: numbering an issue must not touch a row that others reference.
CREATE TABLE workspace_counter (
    workspace_id uuid NOT NULL,
    last_issue_number bigint NOT NULL DEFAULT 0,
    deleted_issues bigint NOT NULL DEFAULT 0,
    CONSTRAINT workspace_counter_pk PRIMARY KEY (workspace_id),
    CONSTRAINT workspace_counter_positive CHECK (deleted_issues BETWEEN 0 AND last_issue_number)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

CREATE TABLE app_user (
    id uuid NOT NULL,
    email text NOT NULL,
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT app_user_pk PRIMARY KEY (id),
    CONSTRAINT app_user_email_unique UNIQUE (email),
    CONSTRAINT app_user_email_form CHECK (email = lower(email) AND position('@' in email) > 1 AND length(email) <= 254),
    CONSTRAINT app_user_name_length CHECK (length(name) BETWEEN 1 AND 100)
);

CREATE TABLE member (
    workspace_id uuid NOT NULL,
    user_id uuid NOT NULL,
    role text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT member_pk PRIMARY KEY (workspace_id, user_id),
    CONSTRAINT member_workspace_fk FOREIGN KEY (workspace_id) REFERENCES workspace (id),
    CONSTRAINT member_user_fk FOREIGN KEY (user_id) REFERENCES app_user (id),
    CONSTRAINT member_role_known CHECK (role IN ('owner', 'admin', 'member'))
);
CREATE INDEX member_user_idx ON member (user_id);

CREATE TABLE api_token (
    id uuid NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    token_hash bytea NOT NULL,
    hint text NOT NULL,
    user_id uuid,
    workspace_id uuid,
    created_by uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    CONSTRAINT api_token_pk PRIMARY KEY (id),
    CONSTRAINT api_token_hash_unique UNIQUE (token_hash),
    CONSTRAINT api_token_user_fk FOREIGN KEY (user_id) REFERENCES app_user (id),
    CONSTRAINT api_token_workspace_fk FOREIGN KEY (workspace_id) REFERENCES workspace (id),
    CONSTRAINT api_token_creator_fk FOREIGN KEY (created_by) REFERENCES app_user (id),
    CONSTRAINT api_token_kind_known CHECK (kind IN ('personal', 'service', 'runtime')),
    CONSTRAINT api_token_name_length CHECK (length(name) BETWEEN 1 AND 100),
    CONSTRAINT api_token_owner CHECK (
        CASE kind WHEN 'personal' THEN user_id IS NOT NULL ELSE user_id IS NULL AND workspace_id IS NOT NULL END)
);
CREATE INDEX api_token_user_idx ON api_token (user_id);
CREATE INDEX api_token_workspace_idx ON api_token (workspace_id);
CREATE INDEX api_token_creator_idx ON api_token (created_by);

-- ---------------------------------------------------------------- who does the work

-- People may rename a runtime; its machine is found again by the name that it registers under (registered_as, null while that is the name).
-- The machine says how many tasks it takes (concurrency), people may allow fewer (concurrency_limit).
CREATE TABLE runtime (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    registered_by uuid,
    token_id uuid,
    registered_as text,
    concurrency integer NOT NULL DEFAULT 1,
    concurrency_limit integer,
    capabilities jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz,
    rev bigint NOT NULL DEFAULT 1,
    CONSTRAINT runtime_pk PRIMARY KEY (id),
    CONSTRAINT runtime_workspace_unique UNIQUE (workspace_id, id),
    CONSTRAINT runtime_workspace_fk FOREIGN KEY (workspace_id) REFERENCES workspace (id),
    CONSTRAINT runtime_registered_by_fk FOREIGN KEY (registered_by) REFERENCES app_user (id),
    CONSTRAINT runtime_token_fk FOREIGN KEY (token_id) REFERENCES api_token (id),
    CONSTRAINT runtime_name_length CHECK (length(name) BETWEEN 1 AND 100),
    CONSTRAINT runtime_registered_as_length CHECK (length(registered_as) BETWEEN 1 AND 100),
    CONSTRAINT runtime_concurrency_range CHECK (concurrency BETWEEN 1 AND 1000 AND concurrency_limit BETWEEN 1 AND 1000),
    CONSTRAINT runtime_capabilities_size CHECK (octet_length(capabilities::text) <= 16384)
);
CREATE UNIQUE INDEX runtime_name_unique ON runtime (workspace_id, name) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX runtime_machine_unique ON runtime (workspace_id, coalesce(registered_as, name)) WHERE deleted_at IS NULL;
CREATE INDEX runtime_registered_by_idx ON runtime (registered_by);
CREATE INDEX runtime_token_idx ON runtime (token_id);

-- Heartbeats beside the runtime, so that the parent of foreign keys stays cold.
CREATE TABLE runtime_heartbeat (
    runtime_id uuid NOT NULL,
    seen_at timestamptz NOT NULL,
    usable boolean NOT NULL DEFAULT true,
    detail text,
    repair_hint text,
    claiming uuid,
    CONSTRAINT runtime_heartbeat_pk PRIMARY KEY (runtime_id),
    CONSTRAINT runtime_heartbeat_detail_length CHECK (length(detail) <= 2000 AND length(repair_hint) <= 2000)
) WITH (fillfactor = 50);

CREATE TABLE agent (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    owner_id uuid NOT NULL,
    visibility text NOT NULL DEFAULT 'private',
    runtime_id uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    archived_at timestamptz,
    rev bigint NOT NULL DEFAULT 1,
    CONSTRAINT agent_pk PRIMARY KEY (id),
    CONSTRAINT agent_workspace_unique UNIQUE (workspace_id, id),
    CONSTRAINT agent_workspace_fk FOREIGN KEY (workspace_id) REFERENCES workspace (id),
    CONSTRAINT agent_owner_fk FOREIGN KEY (owner_id) REFERENCES app_user (id),
    CONSTRAINT agent_runtime_fk FOREIGN KEY (workspace_id, runtime_id) REFERENCES runtime (workspace_id, id),
    CONSTRAINT agent_name_length CHECK (length(name) BETWEEN 1 AND 100),
    CONSTRAINT agent_visibility_known CHECK (visibility IN ('private', 'workspace'))
);
CREATE UNIQUE INDEX agent_name_unique ON agent (workspace_id, name) WHERE archived_at IS NULL;
CREATE INDEX agent_owner_idx ON agent (owner_id);
CREATE INDEX agent_runtime_idx ON agent (workspace_id, runtime_id);

CREATE TABLE agent_share (
    workspace_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    user_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT agent_share_pk PRIMARY KEY (agent_id, user_id),
    CONSTRAINT agent_share_agent_fk FOREIGN KEY (workspace_id, agent_id) REFERENCES agent (workspace_id, id),
    CONSTRAINT agent_share_member_fk FOREIGN KEY (workspace_id, user_id) REFERENCES member (workspace_id, user_id) ON DELETE CASCADE
);
CREATE INDEX agent_share_member_idx ON agent_share (workspace_id, user_id);
CREATE INDEX agent_share_agent_idx ON agent_share (workspace_id, agent_id);

CREATE TABLE squad (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    leader_id uuid,
    created_by uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    archived_at timestamptz,
    rev bigint NOT NULL DEFAULT 1,
    CONSTRAINT squad_pk PRIMARY KEY (id),
    CONSTRAINT squad_workspace_unique UNIQUE (workspace_id, id),
    CONSTRAINT squad_workspace_fk FOREIGN KEY (workspace_id) REFERENCES workspace (id),
    CONSTRAINT squad_leader_fk FOREIGN KEY (workspace_id, leader_id) REFERENCES agent (workspace_id, id),
    CONSTRAINT squad_creator_fk FOREIGN KEY (created_by) REFERENCES app_user (id),
    CONSTRAINT squad_name_length CHECK (length(name) BETWEEN 1 AND 100)
);
CREATE UNIQUE INDEX squad_name_unique ON squad (workspace_id, name) WHERE archived_at IS NULL;
CREATE INDEX squad_leader_idx ON squad (workspace_id, leader_id);
CREATE INDEX squad_creator_idx ON squad (created_by);

CREATE TABLE project (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    created_by uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    rev bigint NOT NULL DEFAULT 1,
    CONSTRAINT project_pk PRIMARY KEY (id),
    CONSTRAINT project_workspace_unique UNIQUE (workspace_id, id),
    CONSTRAINT project_name_unique UNIQUE (workspace_id, name),
    CONSTRAINT project_workspace_fk FOREIGN KEY (workspace_id) REFERENCES workspace (id),
    CONSTRAINT project_creator_fk FOREIGN KEY (created_by) REFERENCES app_user (id),
    CONSTRAINT project_name_length CHECK (length(name) BETWEEN 1 AND 100)
);
CREATE INDEX project_creator_idx ON project (created_by);

-- ---------------------------------------------------------------- rules

-- rev counts every edit (If-Match, joins of writes that were looked up before); version counts publications.
CREATE TABLE autopilot (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    title text NOT NULL,
    description text NOT NULL,
    execution_mode text NOT NULL,
    issue_title_template text,
    assignee_type text,
    agent_id uuid,
    squad_id uuid,
    project_id uuid,
    overlap_policy text NOT NULL DEFAULT 'allow',
    status text NOT NULL DEFAULT 'active',
    pause_reason text,
    creator_id uuid NOT NULL,
    rule_owner_id uuid NOT NULL,
    version integer NOT NULL DEFAULT 0,
    version_id uuid NOT NULL,
    rev bigint NOT NULL DEFAULT 1,
    resumed_at timestamptz NOT NULL DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    archived_at timestamptz,
    CONSTRAINT autopilot_pk PRIMARY KEY (id),
    CONSTRAINT autopilot_workspace_unique UNIQUE (workspace_id, id),
    CONSTRAINT autopilot_workspace_fk FOREIGN KEY (workspace_id) REFERENCES workspace (id),
    CONSTRAINT autopilot_agent_fk FOREIGN KEY (workspace_id, agent_id) REFERENCES agent (workspace_id, id),
    CONSTRAINT autopilot_squad_fk FOREIGN KEY (workspace_id, squad_id) REFERENCES squad (workspace_id, id),
    CONSTRAINT autopilot_project_fk FOREIGN KEY (workspace_id, project_id) REFERENCES project (workspace_id, id) ON DELETE SET NULL (project_id),
    CONSTRAINT autopilot_creator_fk FOREIGN KEY (creator_id) REFERENCES app_user (id),
    CONSTRAINT autopilot_rule_owner_fk FOREIGN KEY (rule_owner_id) REFERENCES app_user (id),
    CONSTRAINT autopilot_title_length CHECK (length(title) BETWEEN 1 AND 200),
    CONSTRAINT autopilot_description_length CHECK (octet_length(description) <= 65536),
    CONSTRAINT autopilot_template_length CHECK (length(issue_title_template) BETWEEN 1 AND 200),
    CONSTRAINT autopilot_mode_known CHECK (execution_mode IN ('create_issue', 'run_only')),
    CONSTRAINT autopilot_overlap_known CHECK (overlap_policy IN ('allow', 'skip', 'queue_one')),
    CONSTRAINT autopilot_status_known CHECK (status IN ('active', 'paused', 'archived')),
    CONSTRAINT autopilot_pause_reason_known CHECK (pause_reason IN ('agent_runtime_required', 'target_unavailable', 'owner_left', 'too_many_failures')),
    CONSTRAINT autopilot_pause_reason_only_paused CHECK (pause_reason IS NULL OR status = 'paused'),
    CONSTRAINT autopilot_archived_at_coherent CHECK ((status = 'archived') = (archived_at IS NOT NULL)),
    CONSTRAINT autopilot_assignee_coherent CHECK (
        CASE assignee_type
            WHEN 'agent' THEN agent_id IS NOT NULL AND squad_id IS NULL
            WHEN 'squad' THEN squad_id IS NOT NULL AND agent_id IS NULL
            ELSE assignee_type IS NULL AND agent_id IS NULL AND squad_id IS NULL
        END)
);
CREATE INDEX autopilot_list_idx ON autopilot (workspace_id, id);
CREATE INDEX autopilot_agent_idx ON autopilot (workspace_id, agent_id);
CREATE INDEX autopilot_squad_idx ON autopilot (workspace_id, squad_id);
CREATE INDEX autopilot_project_idx ON autopilot (workspace_id, project_id);
CREATE INDEX autopilot_creator_idx ON autopilot (creator_id);
CREATE INDEX autopilot_rule_owner_idx ON autopilot (rule_owner_id);

-- schedule_rev counts what changes when a trigger fires: cron, zone, enabled, and the status of its autopilot.
-- Every occurrence writes next_run_at, which is indexed and so costs an entry in each index of the table: there are no more than queries need.
CREATE TABLE autopilot_trigger (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    autopilot_id uuid NOT NULL,
    kind text NOT NULL,
    label text,
    enabled boolean NOT NULL DEFAULT true,
    rev bigint NOT NULL DEFAULT 1,
    published_by uuid,
    published_version_id uuid NOT NULL,
    cron text,
    timezone text,
    catch_up text,
    lateness_s integer,
    next_run_at timestamptz,
    schedule_rev bigint NOT NULL DEFAULT 1,
    schedule_error text,
    tzdata_version text,
    token_hash bytea,
    token_enc bytea,
    token_hint text,
    provider text,
    event_filters jsonb,
    pace_per_min integer,
    secret_enc bytea,
    secret_hint text,
    secret_fingerprint text,
    previous_secret_enc bytea,
    previous_secret_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz,
    CONSTRAINT autopilot_trigger_pk PRIMARY KEY (id),
    CONSTRAINT autopilot_trigger_autopilot_fk FOREIGN KEY (workspace_id, autopilot_id) REFERENCES autopilot (workspace_id, id),
    CONSTRAINT autopilot_trigger_publisher_fk FOREIGN KEY (published_by) REFERENCES app_user (id),
    CONSTRAINT autopilot_trigger_kind_known CHECK (kind IN ('schedule', 'webhook')),
    CONSTRAINT autopilot_trigger_label_length CHECK (length(label) BETWEEN 1 AND 100),
    CONSTRAINT autopilot_trigger_schedule_fields CHECK (
        CASE kind WHEN 'schedule'
            THEN cron IS NOT NULL AND timezone IS NOT NULL AND catch_up IS NOT NULL AND tzdata_version IS NOT NULL
            ELSE num_nonnulls(cron, timezone, catch_up, lateness_s, next_run_at, schedule_error, tzdata_version) = 0
        END),
    CONSTRAINT autopilot_trigger_webhook_fields CHECK (
        CASE kind WHEN 'webhook'
            THEN provider IS NOT NULL AND (deleted_at IS NOT NULL OR (token_hash IS NOT NULL AND token_enc IS NOT NULL AND token_hint IS NOT NULL))
            ELSE num_nonnulls(token_hash, token_enc, token_hint, provider, event_filters, pace_per_min, secret_enc, previous_secret_enc) = 0
        END),
    CONSTRAINT autopilot_trigger_cron_length CHECK (length(cron) BETWEEN 1 AND 256),
    CONSTRAINT autopilot_trigger_catch_up_known CHECK (catch_up IN ('latest', 'none', 'all')),
    CONSTRAINT autopilot_trigger_lateness_range CHECK (lateness_s IS NULL OR (lateness_s BETWEEN 0 AND 2678400 AND catch_up = 'latest')),
    CONSTRAINT autopilot_trigger_next_run_live CHECK (next_run_at IS NULL OR (enabled AND deleted_at IS NULL AND schedule_error IS NULL)),
    CONSTRAINT autopilot_trigger_pace_range CHECK (pace_per_min BETWEEN 1 AND 6000),
    CONSTRAINT autopilot_trigger_secret_coherent CHECK (num_nonnulls(secret_enc, secret_hint, secret_fingerprint) IN (0, 3)),
    CONSTRAINT autopilot_trigger_previous_secret_coherent CHECK (num_nonnulls(previous_secret_enc, previous_secret_until) IN (0, 2)),
    CONSTRAINT autopilot_trigger_dead_token CHECK (deleted_at IS NULL OR token_hash IS NULL)
);
-- Partial on purpose: a full unique index would make a URL rotation lock out every insert that references the row.
CREATE UNIQUE INDEX autopilot_trigger_token_unique ON autopilot_trigger (token_hash) WHERE token_hash IS NOT NULL;
CREATE INDEX autopilot_trigger_due_idx ON autopilot_trigger (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE INDEX autopilot_trigger_autopilot_idx ON autopilot_trigger (workspace_id, autopilot_id);

-- What work writes about a trigger stays off the row that configuration references.
CREATE TABLE trigger_activity (
    trigger_id uuid NOT NULL,
    last_fired_at timestamptz NOT NULL,
    CONSTRAINT trigger_activity_pk PRIMARY KEY (trigger_id)
) WITH (fillfactor = 50);

-- The times given to a trigger's webhook runs, future ones included: the newest that can still hold a later one back (S10.3).
CREATE TABLE trigger_pace (
    trigger_id uuid NOT NULL,
    pace_per_min integer NOT NULL,
    granted_at timestamptz[] NOT NULL DEFAULT '{}',
    CONSTRAINT trigger_pace_pk PRIMARY KEY (trigger_id),
    CONSTRAINT trigger_pace_range CHECK (pace_per_min BETWEEN 1 AND 6000)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- So many further times beside those granted, at most `pace` of all in any minute and each as early as that allows. Answers what to keep:
-- the last `asked` elements are the new ones, in order. Called under the row's lock, so it reads the clock itself.
CREATE FUNCTION pace_slots(granted timestamptz[], pace integer, asked integer) RETURNS timestamptz[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    instant timestamptz := clock_timestamp();
    slots timestamptz[];
    held integer;
BEGIN
    SELECT coalesce(array_agg(recent.g ORDER BY recent.g), '{}')
      INTO slots
      FROM (SELECT g FROM unnest(granted) AS g WHERE g > instant - interval '1 minute' ORDER BY g DESC LIMIT pace) recent;
    held := cardinality(slots);
    FOR place IN held + 1 .. held + asked LOOP
        slots[place] := CASE WHEN place > pace THEN greatest(instant, slots[place - pace] + interval '1 minute') ELSE instant END;
    END LOOP;
    RETURN slots[greatest(1, held + asked - greatest(pace, asked) + 1):];
END $$;

CREATE TABLE autopilot_rule_version (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    autopilot_id uuid NOT NULL,
    version integer NOT NULL,
    publisher_type text NOT NULL,
    published_by uuid,
    edited_by uuid,
    change text NOT NULL,
    rule jsonb NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT autopilot_rule_version_pk PRIMARY KEY (id),
    CONSTRAINT autopilot_rule_version_number_unique UNIQUE (autopilot_id, version),
    CONSTRAINT autopilot_rule_version_autopilot_fk FOREIGN KEY (workspace_id, autopilot_id) REFERENCES autopilot (workspace_id, id),
    CONSTRAINT autopilot_rule_version_positive CHECK (version >= 1),
    CONSTRAINT autopilot_rule_version_publisher CHECK (
        CASE publisher_type WHEN 'user' THEN published_by IS NOT NULL WHEN 'system' THEN published_by IS NULL ELSE false END)
);
CREATE INDEX autopilot_rule_version_autopilot_idx ON autopilot_rule_version (workspace_id, autopilot_id);

CREATE FUNCTION rule_version_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rule versions are immutable'
        USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'autopilot_rule_version_immutable';
END $$;
CREATE TRIGGER autopilot_rule_version_immutable BEFORE UPDATE OR DELETE ON autopilot_rule_version
    FOR EACH ROW EXECUTE FUNCTION rule_version_is_immutable();
CREATE TRIGGER autopilot_rule_version_no_truncate BEFORE TRUNCATE ON autopilot_rule_version
    FOR EACH STATEMENT EXECUTE FUNCTION rule_version_is_immutable();

CREATE TABLE autopilot_collaborator (
    workspace_id uuid NOT NULL,
    autopilot_id uuid NOT NULL,
    user_id uuid NOT NULL,
    granted_by uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT autopilot_collaborator_pk PRIMARY KEY (autopilot_id, user_id),
    CONSTRAINT autopilot_collaborator_autopilot_fk FOREIGN KEY (workspace_id, autopilot_id) REFERENCES autopilot (workspace_id, id),
    CONSTRAINT autopilot_collaborator_member_fk FOREIGN KEY (workspace_id, user_id) REFERENCES member (workspace_id, user_id) ON DELETE CASCADE
);
CREATE INDEX autopilot_collaborator_autopilot_idx ON autopilot_collaborator (workspace_id, autopilot_id);
CREATE INDEX autopilot_collaborator_member_idx ON autopilot_collaborator (workspace_id, user_id);

CREATE TABLE autopilot_subscriber (
    workspace_id uuid NOT NULL,
    autopilot_id uuid NOT NULL,
    user_id uuid NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT autopilot_subscriber_pk PRIMARY KEY (autopilot_id, user_id),
    CONSTRAINT autopilot_subscriber_autopilot_fk FOREIGN KEY (workspace_id, autopilot_id) REFERENCES autopilot (workspace_id, id),
    CONSTRAINT autopilot_subscriber_member_fk FOREIGN KEY (workspace_id, user_id) REFERENCES member (workspace_id, user_id) ON DELETE CASCADE
);
CREATE INDEX autopilot_subscriber_autopilot_idx ON autopilot_subscriber (workspace_id, autopilot_id);
CREATE INDEX autopilot_subscriber_member_idx ON autopilot_subscriber (workspace_id, user_id);

-- ---------------------------------------------------------------- runs and their queue

-- No index looks at a column that changes when a run starts (outcome and completed_at wait for its end), so that starting it, the hottest
-- update of all, touches no index where the page has room.
CREATE TABLE autopilot_run (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    autopilot_id uuid NOT NULL,
    trigger_id uuid,
    source text NOT NULL,
    status text NOT NULL,
    execution_mode text NOT NULL,
    rule_version_id uuid NOT NULL,
    rule_version integer NOT NULL,
    planned_at timestamptz,
    webhook_delivery_id uuid,
    idempotency_key text,
    idempotency_actor uuid,
    idempotency_sha bytea,
    event text,
    payload bytea,
    squad_id uuid,
    agent_id uuid,
    issue_id uuid,
    task_id uuid,
    originator_id uuid,
    accountable_id uuid,
    attribution_source text,
    api_token_id uuid,
    reason_code text,
    failure_reason text,
    result text,
    missed_count integer,
    dispatch_attempts integer NOT NULL DEFAULT 0,
    last_dispatch_error text,
    outcome text GENERATED ALWAYS AS (CASE WHEN completed_at IS NOT NULL THEN status END) STORED,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    completed_at timestamptz,
    CONSTRAINT autopilot_run_pk PRIMARY KEY (id),
    CONSTRAINT autopilot_run_source_known CHECK (source IN ('manual', 'schedule', 'webhook', 'api')),
    CONSTRAINT autopilot_run_status_known CHECK (status IN ('pending', 'issue_created', 'running', 'completed', 'failed', 'skipped')),
    CONSTRAINT autopilot_run_mode_known CHECK (execution_mode IN ('create_issue', 'run_only')),
    CONSTRAINT autopilot_run_issue_created_has_issue CHECK (status <> 'issue_created' OR (issue_id IS NOT NULL AND task_id IS NOT NULL AND execution_mode = 'create_issue')),
    CONSTRAINT autopilot_run_running_has_task CHECK (status <> 'running' OR (task_id IS NOT NULL AND execution_mode = 'run_only')),
    CONSTRAINT autopilot_run_completed_was_started CHECK (status <> 'completed' OR (started_at IS NOT NULL AND task_id IS NOT NULL)),
    CONSTRAINT autopilot_run_pending_is_bare CHECK (status NOT IN ('pending', 'skipped') OR num_nonnulls(issue_id, task_id, started_at) = 0),
    CONSTRAINT autopilot_run_started_coherent CHECK ((started_at IS NOT NULL) = (task_id IS NOT NULL)),
    CONSTRAINT autopilot_run_final_has_end CHECK ((status IN ('completed', 'failed', 'skipped')) = (completed_at IS NOT NULL)),
    CONSTRAINT autopilot_run_reason_given CHECK ((status IN ('failed', 'skipped')) = (reason_code IS NOT NULL) AND (reason_code IS NULL) = (failure_reason IS NULL)),
    CONSTRAINT autopilot_run_reason_known CHECK (reason_code IN (
        'autopilot_paused', 'autopilot_archived', 'trigger_disabled', 'event_filtered', 'target_unavailable', 'agent_runtime_required',
        'runtime_offline', 'runtime_unusable', 'invocation_not_allowed', 'attribution_blocked', 'already_active', 'schedule_missed',
        'quota_exceeded', 'provider_ping', 'dispatch_exhausted', 'task_failed', 'task_cancelled', 'task_expired', 'issue_cancelled',
        'issue_blocked', 'issue_deleted', 'internal_error')),
    CONSTRAINT autopilot_run_failure_reason_length CHECK (length(failure_reason) BETWEEN 1 AND 2000),
    CONSTRAINT autopilot_run_result_length CHECK (octet_length(result) <= 65536),
    CONSTRAINT autopilot_run_trigger_by_source CHECK ((source IN ('schedule', 'webhook')) = (trigger_id IS NOT NULL)),
    CONSTRAINT autopilot_run_planned_by_source CHECK (CASE source WHEN 'schedule' THEN planned_at IS NOT NULL OR status = 'failed' ELSE planned_at IS NULL END),
    CONSTRAINT autopilot_run_delivery_by_source CHECK ((source = 'webhook') = (webhook_delivery_id IS NOT NULL)),
    CONSTRAINT autopilot_run_originator_is_present CHECK ((originator_id IS NOT NULL) = (source = 'manual')),
    CONSTRAINT autopilot_run_originator_accounts CHECK (originator_id IS NULL OR accountable_id = originator_id),
    CONSTRAINT autopilot_run_accountable CHECK (accountable_id IS NOT NULL OR status IN ('skipped', 'failed')),
    CONSTRAINT autopilot_run_attribution_known CHECK (
        attribution_source IN ('direct_human', 'trigger_owner', 'rule_owner', 'owner_fallback')
        AND (attribution_source IS NULL) = (accountable_id IS NULL)),
    CONSTRAINT autopilot_run_attribution_by_source CHECK (
        CASE attribution_source WHEN 'direct_human' THEN source = 'manual' WHEN 'trigger_owner' THEN trigger_id IS NOT NULL ELSE source <> 'manual' OR attribution_source IS NULL END),
    CONSTRAINT autopilot_run_token_by_source CHECK (api_token_id IS NULL OR source = 'api'),
    CONSTRAINT autopilot_run_idempotency_coherent CHECK (num_nonnulls(idempotency_key, idempotency_actor, idempotency_sha) IN (0, 3)),
    CONSTRAINT autopilot_run_idempotency_length CHECK (length(idempotency_key) BETWEEN 1 AND 255),
    CONSTRAINT autopilot_run_payload_size CHECK (octet_length(payload) <= 262144)
) WITH (fillfactor = 60);
CREATE INDEX autopilot_run_list_idx ON autopilot_run (autopilot_id, id);
CREATE INDEX autopilot_run_in_flight_idx ON autopilot_run (autopilot_id) WHERE completed_at IS NULL;
CREATE UNIQUE INDEX autopilot_run_plan_unique ON autopilot_run (trigger_id, planned_at) WHERE planned_at IS NOT NULL;
CREATE UNIQUE INDEX autopilot_run_delivery_unique ON autopilot_run (webhook_delivery_id) WHERE webhook_delivery_id IS NOT NULL;
CREATE UNIQUE INDEX autopilot_run_idempotency_unique ON autopilot_run (autopilot_id, source, idempotency_actor, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX autopilot_run_ended_idx ON autopilot_run (completed_at) WHERE completed_at IS NOT NULL;
-- How a rule fares: its newest runs of one outcome, without those that people started by hand.
CREATE INDEX autopilot_run_health_idx ON autopilot_run (autopilot_id, outcome, completed_at) WHERE completed_at IS NOT NULL AND source <> 'manual';

-- Slim, keyed by its own sequence, deleted on finish; the lease columns carry no index so that a claim is a HOT update.
-- paced: the entry has its time within its trigger's pace, and is not asked for it again.
CREATE TABLE dispatch_queue (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    run_id uuid,
    delivery_id uuid,
    autopilot_id uuid NOT NULL,
    trigger_id uuid,
    size integer NOT NULL DEFAULT 0,
    claims integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    lease_token uuid,
    lease_until timestamptz,
    last_error text,
    paced boolean NOT NULL DEFAULT false,
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT dispatch_queue_pk PRIMARY KEY (seq),
    CONSTRAINT dispatch_queue_one_subject CHECK (num_nonnulls(run_id, delivery_id) = 1),
    CONSTRAINT dispatch_queue_lease_coherent CHECK (num_nonnulls(lease_token, lease_until) IN (0, 2))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX dispatch_queue_run_unique ON dispatch_queue (run_id) WHERE run_id IS NOT NULL;
CREATE UNIQUE INDEX dispatch_queue_delivery_unique ON dispatch_queue (delivery_id) WHERE delivery_id IS NOT NULL;
-- The entries of undecided deliveries, which are claimed apart from those of runs.
CREATE INDEX dispatch_queue_undecided_idx ON dispatch_queue (seq) WHERE delivery_id IS NOT NULL;

-- Entries for a later time: a retry, a paced slot, or the one waiter of queue_one with its deadline.
CREATE TABLE dispatch_deferred (
    id bigint GENERATED ALWAYS AS IDENTITY,
    kind text NOT NULL,
    run_id uuid,
    delivery_id uuid,
    autopilot_id uuid NOT NULL,
    trigger_id uuid,
    size integer NOT NULL DEFAULT 0,
    claims integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    last_error text,
    available_at timestamptz NOT NULL,
    enqueued_at timestamptz NOT NULL,
    CONSTRAINT dispatch_deferred_pk PRIMARY KEY (id),
    CONSTRAINT dispatch_deferred_kind_known CHECK (kind IN ('retry', 'paced', 'parked')),
    CONSTRAINT dispatch_deferred_one_subject CHECK (num_nonnulls(run_id, delivery_id) = 1)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX dispatch_deferred_due_idx ON dispatch_deferred (available_at);
CREATE UNIQUE INDEX dispatch_deferred_run_unique ON dispatch_deferred (run_id) WHERE run_id IS NOT NULL;
CREATE UNIQUE INDEX dispatch_deferred_delivery_unique ON dispatch_deferred (delivery_id) WHERE delivery_id IS NOT NULL;
CREATE UNIQUE INDEX dispatch_deferred_parked_unique ON dispatch_deferred (autopilot_id) WHERE kind = 'parked';

-- ---------------------------------------------------------------- webhook deliveries

CREATE TABLE webhook_delivery (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    autopilot_id uuid NOT NULL,
    trigger_id uuid NOT NULL,
    provider text NOT NULL,
    event text NOT NULL,
    dedupe_key text,
    dedupe_source text,
    signature_status text NOT NULL,
    status text NOT NULL,
    attempt_count integer NOT NULL DEFAULT 1,
    headers jsonb NOT NULL,
    content_type text,
    response_status integer NOT NULL,
    response_body jsonb NOT NULL,
    run_id uuid,
    error text,
    reason_code text,
    replayed_from uuid,
    replayed_by uuid,
    replay_key text,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_attempt_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT webhook_delivery_pk PRIMARY KEY (id),
    CONSTRAINT webhook_delivery_event_length CHECK (length(event) BETWEEN 1 AND 255),
    CONSTRAINT webhook_delivery_dedupe_coherent CHECK (num_nonnulls(dedupe_key, dedupe_source) IN (0, 2) AND length(dedupe_key) BETWEEN 1 AND 255),
    CONSTRAINT webhook_delivery_dedupe_source_known CHECK (dedupe_source IN ('delivery_id', 'idempotency_key')),
    CONSTRAINT webhook_delivery_signature_known CHECK (signature_status IN ('not_required', 'valid', 'invalid', 'missing')),
    CONSTRAINT webhook_delivery_status_known CHECK (status IN ('queued', 'dispatched', 'failed', 'ignored', 'rejected')),
    CONSTRAINT webhook_delivery_rejected_unsigned CHECK ((status = 'rejected') = (signature_status IN ('invalid', 'missing'))),
    CONSTRAINT webhook_delivery_run_by_status CHECK (
        CASE status WHEN 'dispatched' THEN run_id IS NOT NULL WHEN 'ignored' THEN run_id IS NULL WHEN 'rejected' THEN run_id IS NULL ELSE true END),
    CONSTRAINT webhook_delivery_reason_given CHECK (status NOT IN ('failed', 'ignored', 'rejected') OR reason_code IS NOT NULL),
    CONSTRAINT webhook_delivery_reason_known CHECK (reason_code IN (
        'autopilot_paused', 'autopilot_archived', 'trigger_disabled', 'event_filtered', 'target_unavailable', 'agent_runtime_required',
        'runtime_offline', 'runtime_unusable', 'invocation_not_allowed', 'attribution_blocked', 'already_active', 'schedule_missed',
        'quota_exceeded', 'provider_ping', 'dispatch_exhausted', 'internal_error', 'missing_signature', 'invalid_signature')),
    CONSTRAINT webhook_delivery_replay_coherent CHECK ((replayed_from IS NULL) = (replayed_by IS NULL) AND (replay_key IS NULL OR replayed_from IS NOT NULL))
) WITH (fillfactor = 85);
CREATE INDEX webhook_delivery_trigger_idx ON webhook_delivery (trigger_id, id);
CREATE INDEX webhook_delivery_autopilot_idx ON webhook_delivery (autopilot_id, id);
CREATE UNIQUE INDEX webhook_delivery_replay_unique ON webhook_delivery (replayed_from, replay_key) WHERE replay_key IS NOT NULL;
-- What retention looks for: replays of a delivery, and deliveries that never had a run, which go before the others.
CREATE INDEX webhook_delivery_replayed_idx ON webhook_delivery (replayed_from) WHERE replayed_from IS NOT NULL;
CREATE INDEX webhook_delivery_runless_idx ON webhook_delivery (id) WHERE run_id IS NULL;

-- Compressed before it comes here, then raw_size tells how large it was: Postgres need not try (storage external).
CREATE TABLE webhook_body (
    delivery_id uuid NOT NULL,
    body bytea NOT NULL,
    raw_size integer,
    CONSTRAINT webhook_body_pk PRIMARY KEY (delivery_id),
    CONSTRAINT webhook_body_raw_size_larger CHECK (raw_size > octet_length(body))
);
ALTER TABLE webhook_body ALTER COLUMN body SET STORAGE EXTERNAL;

-- The slot is held while the row exists. The digest of the body is kept where another body under the same key is an error.
CREATE TABLE webhook_dedupe (
    trigger_id uuid NOT NULL,
    dedupe_key text NOT NULL,
    delivery_id uuid NOT NULL,
    body_sha bytea,
    CONSTRAINT webhook_dedupe_pk PRIMARY KEY (trigger_id, dedupe_key),
    CONSTRAINT webhook_dedupe_sha_size CHECK (octet_length(body_sha) = 32)
);
CREATE UNIQUE INDEX webhook_dedupe_delivery_unique ON webhook_dedupe (delivery_id);

-- ---------------------------------------------------------------- the scheduler

CREATE TABLE sys_cron_executions (
    id uuid NOT NULL,
    job_name text NOT NULL,
    scope_kind text NOT NULL,
    scope_id text NOT NULL,
    plan_time timestamptz NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL DEFAULT 1,
    max_attempts integer NOT NULL,
    reentry boolean NOT NULL,
    runner_id uuid NOT NULL,
    lease_token uuid NOT NULL,
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    stale_at timestamptz NOT NULL,
    next_retry_at timestamptz,
    schedule_rev bigint,
    result jsonb,
    error_code text,
    error_message text,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    CONSTRAINT sys_cron_executions_pk PRIMARY KEY (id),
    CONSTRAINT sys_cron_executions_plan_unique UNIQUE (job_name, scope_kind, scope_id, plan_time),
    CONSTRAINT sys_cron_executions_state_known CHECK (state IN ('RUNNING', 'SUCCESS', 'FAILED')),
    CONSTRAINT sys_cron_executions_attempts_range CHECK (attempts >= 1 AND max_attempts >= 1),
    CONSTRAINT sys_cron_executions_final_has_end CHECK ((state = 'RUNNING') = (finished_at IS NULL)),
    CONSTRAINT sys_cron_executions_error_given CHECK ((state = 'FAILED') = (error_code IS NOT NULL)),
    CONSTRAINT sys_cron_executions_error_known CHECK (error_code IN ('handler_error', 'run_timeout', 'lease_lost', 'stale_timeout', 'cancelled')),
    CONSTRAINT sys_cron_executions_retry_only_failed CHECK (next_retry_at IS NULL OR (state = 'FAILED' AND attempts < max_attempts)),
    CONSTRAINT sys_cron_executions_result_size CHECK (octet_length(result::text) <= 16384),
    CONSTRAINT sys_cron_executions_message_length CHECK (length(error_message) <= 4000)
) WITH (fillfactor = 85);
CREATE INDEX sys_cron_executions_retry_idx ON sys_cron_executions (job_name, next_retry_at) WHERE next_retry_at IS NOT NULL;
CREATE INDEX sys_cron_executions_stale_idx ON sys_cron_executions (job_name, stale_at) WHERE state = 'RUNNING';
-- For people who look: failures among many successes, and the few plans that are not triggers' own.
CREATE INDEX sys_cron_executions_failed_idx ON sys_cron_executions (scope_id, plan_time) WHERE state = 'FAILED' AND scope_kind = 'trigger';
CREATE INDEX sys_cron_executions_jobs_idx ON sys_cron_executions (job_name, plan_time) WHERE scope_kind <> 'trigger';

-- ---------------------------------------------------------------- issues and tasks

CREATE TABLE issue (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    number bigint NOT NULL,
    title text NOT NULL,
    body text NOT NULL,
    status text NOT NULL,
    assignee_type text,
    assignee_id uuid,
    creator_type text NOT NULL,
    creator_id uuid NOT NULL,
    project_id uuid,
    origin_autopilot_id uuid,
    origin_run_id uuid,
    rev bigint NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at timestamptz,
    CONSTRAINT issue_pk PRIMARY KEY (id),
    CONSTRAINT issue_number_unique UNIQUE (workspace_id, number),
    CONSTRAINT issue_project_fk FOREIGN KEY (workspace_id, project_id) REFERENCES project (workspace_id, id) ON DELETE SET NULL (project_id),
    CONSTRAINT issue_title_length CHECK (length(title) BETWEEN 1 AND 255),
    CONSTRAINT issue_status_known CHECK (status IN ('backlog', 'todo', 'in_progress', 'in_review', 'done', 'blocked', 'cancelled')),
    CONSTRAINT issue_assignee_coherent CHECK (num_nonnulls(assignee_type, assignee_id) IN (0, 2) AND assignee_type IN ('agent', 'squad', 'user')),
    CONSTRAINT issue_creator_known CHECK (creator_type IN ('agent', 'user')),
    CONSTRAINT issue_origin_coherent CHECK (num_nonnulls(origin_autopilot_id, origin_run_id) IN (0, 2)),
    CONSTRAINT issue_closed_at_coherent CHECK ((status IN ('done', 'cancelled')) = (closed_at IS NOT NULL))
) WITH (fillfactor = 85);
CREATE INDEX issue_list_idx ON issue (workspace_id, id);
CREATE INDEX issue_project_idx ON issue (workspace_id, project_id) WHERE project_id IS NOT NULL;
CREATE UNIQUE INDEX issue_origin_run_unique ON issue (origin_run_id) WHERE origin_run_id IS NOT NULL;

CREATE TABLE issue_comment (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    issue_id uuid NOT NULL,
    author_type text NOT NULL,
    author_id uuid NOT NULL,
    body text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT issue_comment_pk PRIMARY KEY (id),
    CONSTRAINT issue_comment_author_known CHECK (author_type IN ('agent', 'user', 'system')),
    CONSTRAINT issue_comment_body_size CHECK (octet_length(body) <= 65536)
);
CREATE INDEX issue_comment_list_idx ON issue_comment (issue_id, id);

CREATE TABLE issue_subscriber (
    issue_id uuid NOT NULL,
    user_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT issue_subscriber_pk PRIMARY KEY (issue_id, user_id),
    CONSTRAINT issue_subscriber_reason_known CHECK (reason IN ('autopilot', 'manual'))
);

-- A task of an issue (issue_id set) or of a bare run (issue_id null); run_id is the run that made it, if any.
CREATE TABLE agent_task (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    agent_id uuid NOT NULL,
    issue_id uuid,
    run_id uuid,
    autopilot_id uuid,
    accountable_id uuid,
    prompt text NOT NULL,
    status text NOT NULL,
    attempt integer NOT NULL DEFAULT 1,
    max_attempts integer NOT NULL DEFAULT 1,
    claims integer NOT NULL DEFAULT 0,
    timeout_s integer NOT NULL DEFAULT 3600,
    available_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz,
    runtime_id uuid,
    claim_id uuid,
    lease_token uuid,
    lease_until timestamptz,
    cancel_requested_at timestamptz,
    progress text,
    result text,
    error text,
    failure_kind text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimed_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    CONSTRAINT agent_task_pk PRIMARY KEY (id),
    CONSTRAINT agent_task_has_cause CHECK (num_nonnulls(issue_id, run_id) >= 1),
    CONSTRAINT agent_task_status_known CHECK (status IN ('queued', 'claimed', 'running', 'completed', 'failed', 'cancelled', 'expired')),
    CONSTRAINT agent_task_attempts_range CHECK (attempt BETWEEN 1 AND max_attempts),
    CONSTRAINT agent_task_timeout_range CHECK (timeout_s BETWEEN 1 AND 86400),
    CONSTRAINT agent_task_held_has_lease CHECK (status NOT IN ('claimed', 'running') OR num_nonnulls(runtime_id, lease_token, lease_until, claimed_at) = 4),
    CONSTRAINT agent_task_queued_is_free CHECK (status <> 'queued' OR num_nonnulls(lease_token, lease_until, finished_at) = 0),
    CONSTRAINT agent_task_final_has_end CHECK ((status IN ('completed', 'failed', 'cancelled', 'expired')) = (finished_at IS NOT NULL)),
    CONSTRAINT agent_task_failed_has_error CHECK (status NOT IN ('failed', 'expired') OR (error IS NOT NULL AND failure_kind IS NOT NULL)),
    CONSTRAINT agent_task_failure_kind_known CHECK (failure_kind IN ('agent', 'timeout', 'runtime_lost', 'expired')),
    CONSTRAINT agent_task_progress_length CHECK (length(progress) <= 2000),
    CONSTRAINT agent_task_result_size CHECK (octet_length(result) <= 65536),
    CONSTRAINT agent_task_error_length CHECK (length(error) <= 4000)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX agent_task_claim_idx ON agent_task (agent_id, id) WHERE status = 'queued';
CREATE INDEX agent_task_held_idx ON agent_task (runtime_id) WHERE status IN ('claimed', 'running');
CREATE INDEX agent_task_lease_idx ON agent_task (lease_until) WHERE status IN ('claimed', 'running');
CREATE INDEX agent_task_expiry_idx ON agent_task (expires_at) WHERE status = 'queued' AND expires_at IS NOT NULL;
CREATE INDEX agent_task_issue_idx ON agent_task (issue_id, id) WHERE issue_id IS NOT NULL;
CREATE INDEX agent_task_run_idx ON agent_task (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX agent_task_list_idx ON agent_task (workspace_id, id);
CREATE UNIQUE INDEX agent_task_one_active_per_issue ON agent_task (issue_id) WHERE issue_id IS NOT NULL AND status IN ('queued', 'claimed', 'running');

-- What a task's command prints, in pieces as they come: the place counts characters. The oldest go when there are more than a mebibyte.
CREATE TABLE task_output (
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    place bigint NOT NULL,
    text text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT task_output_pk PRIMARY KEY (task_id, attempt, place),
    CONSTRAINT task_output_place_positive CHECK (place >= 0),
    CONSTRAINT task_output_size CHECK (octet_length(text) BETWEEN 1 AND 65536)
);

CREATE TABLE inbox_item (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    user_id uuid NOT NULL,
    kind text NOT NULL,
    title text NOT NULL,
    autopilot_id uuid,
    run_id uuid,
    issue_id uuid,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    read_at timestamptz,
    CONSTRAINT inbox_item_pk PRIMARY KEY (id),
    CONSTRAINT inbox_item_title_length CHECK (length(title) BETWEEN 1 AND 500)
);
CREATE INDEX inbox_item_list_idx ON inbox_item (workspace_id, user_id, id);
CREATE INDEX inbox_item_unread_idx ON inbox_item (workspace_id, user_id, id) WHERE read_at IS NULL;
-- The newest notice of a kind about a rule; what tells of an issue is none.
CREATE INDEX inbox_item_notice_idx ON inbox_item (autopilot_id, kind, created_at) WHERE issue_id IS NULL;

-- ---------------------------------------------------------------- events and statistics

-- Transitions insert here; the sequencer moves rows to run_event in id order and numbers them densely.
CREATE TABLE run_event_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY,
    event_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    autopilot_id uuid NOT NULL,
    run_id uuid NOT NULL,
    kind text NOT NULL,
    payload jsonb NOT NULL,
    occurred_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT run_event_outbox_pk PRIMARY KEY (id),
    CONSTRAINT run_event_outbox_kind_known CHECK (kind IN ('run.started', 'run.done'))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Told by the database itself, so that no writer of runs can forget an event (S2.5): once when a run starts, once when it ends.
-- It also refuses every transition that S2 does not draw.
-- A connection plans its joins once, by the number of rows of the first call: after a single run a nested loop, over every batch to come.
CREATE FUNCTION tell_run_events() RETURNS trigger LANGUAGE plpgsql SET enable_nestloop = off AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
        SELECT run_event_id(n.id, n.task_id, n.status), n.workspace_id, n.autopilot_id, n.id,
               CASE WHEN n.status IN ('issue_created', 'running') THEN 'run.started' ELSE 'run.done' END,
               run_event_payload(n.source, n.status, n.trigger_id, n.webhook_delivery_id, n.issue_id, n.task_id, n.planned_at, n.reason_code)
          FROM new_rows n
         WHERE n.status <> 'pending'
         ORDER BY n.id;
    ELSE
        -- A second end would be a second run.done, at which the sequencer would stop for everybody.
        IF EXISTS (
            SELECT 1 FROM new_rows n JOIN old_rows o ON o.id = n.id
             WHERE o.status <> n.status
               AND CASE o.status WHEN 'pending' THEN n.status = 'completed' ELSE o.completed_at IS NOT NULL OR n.status NOT IN ('completed', 'failed') END)
        THEN
            RAISE EXCEPTION 'a run cannot change its status in this way'
                USING ERRCODE = 'integrity_constraint_violation', CONSTRAINT = 'autopilot_run_transition';
        END IF;
        INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload)
        SELECT run_event_id(n.id, n.task_id, n.status), n.workspace_id, n.autopilot_id, n.id,
               CASE WHEN n.status IN ('issue_created', 'running') THEN 'run.started' ELSE 'run.done' END,
               run_event_payload(n.source, n.status, n.trigger_id, n.webhook_delivery_id, n.issue_id, n.task_id, n.planned_at, n.reason_code)
          FROM new_rows n
          JOIN old_rows o ON o.id = n.id
         WHERE o.status <> n.status
         ORDER BY n.id;
    END IF;
    RETURN NULL;
END $$;

-- The id follows from what the event tells: told twice it is one event, and what a restored database tells anew is another one.
-- A random one costs a system call, which took longer than the rest of the row.
CREATE FUNCTION run_event_id(run_id uuid, task_id uuid, status text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(substr(sha256(uuid_send(run_id) || uuid_send(coalesce(task_id, run_id)) || convert_to(status, 'UTF8')), 1, 16), 'hex')::uuid
$$;

CREATE FUNCTION run_event_payload(
    source text, status text, trigger_id uuid, delivery_id uuid, issue_id uuid, task_id uuid, planned_at timestamptz, reason_code text)
RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_strip_nulls(jsonb_build_object(
        'source', source, 'status', status, 'trigger_id', trigger_id, 'delivery_id', delivery_id,
        'issue_id', issue_id, 'task_id', task_id, 'planned_at', planned_at, 'reason_code', reason_code))
$$;

CREATE TRIGGER autopilot_run_tell_insert AFTER INSERT ON autopilot_run
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION tell_run_events();
CREATE TRIGGER autopilot_run_tell_update AFTER UPDATE ON autopilot_run
    REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION tell_run_events();

CREATE TABLE run_event (
    workspace_id uuid NOT NULL,
    seq bigint NOT NULL,
    event_id uuid NOT NULL,
    autopilot_id uuid NOT NULL,
    run_id uuid NOT NULL,
    kind text NOT NULL,
    payload jsonb NOT NULL,
    occurred_at timestamptz NOT NULL,
    CONSTRAINT run_event_pk PRIMARY KEY (workspace_id, seq),
    CONSTRAINT run_event_once UNIQUE (run_id, kind),
    CONSTRAINT run_event_kind_known CHECK (kind IN ('run.started', 'run.done')),
    CONSTRAINT run_event_seq_positive CHECK (seq >= 1)
);

-- What a restored or promoted copy of this database does not share with it: the server, its timeline and the database's own number.
CREATE FUNCTION database_history() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws('.', (SELECT system_identifier FROM pg_control_system()), (SELECT timeline_id FROM pg_control_checkpoint()),
                     (SELECT oid FROM pg_database WHERE datname = current_database()))
$$;

-- One row a workspace: the sequencer's lock and counter, and how far the relay has been confirmed. `history` is where the numbers
-- of `epoch` were given.
CREATE TABLE event_head (
    workspace_id uuid NOT NULL,
    epoch bigint NOT NULL DEFAULT 1,
    history text NOT NULL DEFAULT database_history(),
    last_seq bigint NOT NULL DEFAULT 0,
    relayed_seq bigint NOT NULL DEFAULT 0,
    relay_token uuid,
    relay_until timestamptz,
    CONSTRAINT event_head_pk PRIMARY KEY (workspace_id),
    CONSTRAINT event_head_order CHECK (relayed_seq <= last_seq)
) WITH (fillfactor = 50);
CREATE INDEX event_head_behind_idx ON event_head (workspace_id) WHERE relayed_seq < last_seq;

CREATE TABLE run_stats_hourly (
    workspace_id uuid NOT NULL,
    autopilot_id uuid NOT NULL,
    hour timestamptz NOT NULL,
    completed integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    CONSTRAINT run_stats_hourly_pk PRIMARY KEY (autopilot_id, hour)
);
CREATE INDEX run_stats_hourly_hour_idx ON run_stats_hourly (hour);

-- ---------------------------------------------------------------- what admission looks at

-- Who would execute for an assignee, and every fact that readiness and permission judge of them.
CREATE FUNCTION executor_facts(p_workspace_id uuid, p_assignee_type text, p_agent_id uuid, p_squad_id uuid, p_creator_id uuid)
RETURNS TABLE (
    squad_archived boolean, agent_id uuid, agent_archived boolean, agent_owner_id uuid, agent_owner_present boolean,
    agent_visibility text, creator_has_share boolean, runtime_id uuid, runtime_seen_at timestamptz, runtime_usable boolean,
    runtime_detail text, runtime_repair_hint text)
LANGUAGE sql STABLE AS $$
    SELECT coalesce(s.archived_at IS NOT NULL, false),
           g.id,
           coalesce(g.archived_at IS NOT NULL, false),
           g.owner_id,
           EXISTS (SELECT 1 FROM member m WHERE m.workspace_id = p_workspace_id AND m.user_id = g.owner_id),
           g.visibility,
           EXISTS (SELECT 1 FROM agent_share x WHERE x.agent_id = g.id AND x.user_id = p_creator_id),
           r.id,
           h.seen_at,
           coalesce(h.usable, true),
           h.detail,
           h.repair_hint
      FROM (SELECT 1) one
      LEFT JOIN squad s ON p_assignee_type = 'squad' AND s.workspace_id = p_workspace_id AND s.id = p_squad_id
      LEFT JOIN agent g ON g.workspace_id = p_workspace_id
                       AND g.id = CASE p_assignee_type WHEN 'agent' THEN p_agent_id WHEN 'squad' THEN s.leader_id END
      LEFT JOIN runtime r ON r.workspace_id = p_workspace_id AND r.id = g.runtime_id AND r.deleted_at IS NULL
      LEFT JOIN runtime_heartbeat h ON h.runtime_id = r.id
$$;

-- One row an autopilot: every fact that admission judges, read in one statement so that they agree.
CREATE VIEW admission_facts AS
SELECT a.id AS autopilot_id,
       a.workspace_id,
       a.rev AS autopilot_rev,
       a.status AS autopilot_status,
       a.execution_mode,
       a.overlap_policy,
       a.assignee_type,
       a.squad_id,
       x.squad_archived,
       x.agent_id,
       x.agent_archived,
       x.agent_owner_id,
       x.agent_owner_present,
       x.agent_visibility,
       x.creator_has_share,
       x.runtime_id,
       x.runtime_seen_at,
       x.runtime_usable,
       x.runtime_detail,
       x.runtime_repair_hint,
       a.creator_id,
       a.rule_owner_id,
       EXISTS (SELECT 1 FROM member m WHERE m.workspace_id = a.workspace_id AND m.user_id = a.rule_owner_id) AS rule_owner_present,
       w.attribution_policy,
       a.version AS rule_version,
       a.version_id AS rule_version_id
  FROM autopilot a
  JOIN workspace w ON w.id = a.workspace_id
 CROSS JOIN LATERAL executor_facts(a.workspace_id, a.assignee_type, a.agent_id, a.squad_id, a.creator_id) x;
